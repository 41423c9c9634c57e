"""The last layer, the loss, and the way back to the layer before, in one kernel."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._sums import unscale


@triton.jit
def cross_entropy(logit, o, target, OUT: tl.constexpr):
    """Negative log-likelihood of a sample, and its gradient."""
    logit = tl.where(o < OUT, logit, -float("inf"))
    shifted = logit - tl.max(logit, 0)
    power = tl.exp(shifted)
    whole = tl.sum(power, 0)
    loss = tl.log(whole) - tl.sum(tl.where(o == target, shifted, 0.0), 0)
    return loss, power / whole - tl.where(o == target, 1.0, 0.0)


@triton.jit
def head_kernel(
    x,
    effective,
    inner,
    factor,
    summand,
    targets,
    active,
    pooled,
    for_factor,
    for_summand,
    losses,
    out,
    weights,
    effective_at,
    row_at,
    before_at,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    OUT: tl.constexpr,
    SLOPE: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
    BO: tl.constexpr,
):
    """Programs (sample, model). A convolution of 1x1 and the mean over the pixels change places: the mean comes first.

    It leaves the pooled input, the gradients of ``A`` and ``B`` of this layer and the one before, the losses, and the
    gradient of the response before.
    """
    n, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    c, o = tl.arange(0, BC), tl.arange(0, BO)
    base = (model * LIMIT + n) * (PIXELS * C)
    totals = tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        mask = (p < PIXELS)[:, None] & (c < C)[None, :]
        totals += tl.load(x + base + p[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(totals, 0)
    mean = total / PIXELS
    tl.store(pooled + (model * LIMIT + n) * C + c, mean, mask=c < C)
    kernel = effective + model * weights + effective_at + o[:, None] * C + c[None, :]
    w = tl.load(kernel, mask=(o < OUT)[:, None] & (c < C)[None, :], other=0.0).to(tl.float32)
    z = tl.sum(w * mean[None, :], 1)
    at = (model * LIMIT + n) * ROWS + row_at + o
    scale = tl.load(factor + at, mask=o < OUT, other=0.0)
    z_moved = z + tl.load(inner + model * ROWS + row_at + o, mask=o < OUT, other=0.0)
    logit = z_moved * scale + tl.load(summand + at, mask=o < OUT, other=0.0)
    loss, grad = cross_entropy(logit, o, tl.load(targets + model * LIMIT + n), OUT)
    tl.store(losses + model * LIMIT + n, loss)
    grad /= BATCH
    tl.store(for_factor + at, grad * z, mask=o < OUT)
    tl.store(for_summand + at, grad, mask=o < OUT)
    back = tl.sum(w * (grad * scale)[:, None], 0) / PIXELS
    at = (model * LIMIT + n) * ROWS + before_at + c
    scale = tl.load(factor + at, mask=c < C, other=0.0)
    scaled = back * scale
    slopes = tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        mask = (p < PIXELS)[:, None] & (c < C)[None, :]
        place = base + p[:, None] * C + c[None, :]
        a = tl.load(x + place, mask=mask, other=0.0)
        slope = tl.where(mask, tl.where(a > 0, 1.0, SLOPE), 0.0)
        slopes += slope
        tl.store(out + place, (slope * scaled[None, :]).to(out.dtype.element_ty), mask=mask)
    shift = tl.load(summand + at, mask=c < C, other=0.0)
    h = tl.load(inner + model * ROWS + before_at + c, mask=c < C, other=0.0)
    for_shift = back * tl.sum(slopes, 0)
    tl.store(for_summand + at, for_shift, mask=c < C)
    tl.store(for_factor + at, unscale(for_shift, back * total, scale, shift, h), mask=c < C)


@triton.jit
def last_kernel(
    pooled,
    factor,
    for_summand,
    active,
    parts,
    parts_at,
    row_at,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    MODEL: tl.constexpr,
    C: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """Programs (output, model): gradient of the last layer's effective weight."""
    o, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    c = tl.arange(0, BC)
    total = tl.zeros((BC,), dtype=tl.float32)
    for start in range(0, BATCH, BN):
        n = start + tl.arange(0, BN)
        at = (model * LIMIT + n) * ROWS + row_at + o
        grad = tl.load(for_summand + at, mask=n < BATCH, other=0.0) * tl.load(factor + at, mask=n < BATCH, other=0.0)
        mask = (n < BATCH)[:, None] & (c < C)[None, :]
        mean = tl.load(pooled + (model * LIMIT + n)[:, None] * C + c[None, :], mask=mask, other=0.0)
        total += tl.sum(grad[:, None] * mean, 0)
    tl.store(parts + model * MODEL + parts_at + o * C + c, total, mask=c < C)
