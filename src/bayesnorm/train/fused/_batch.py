"""Batch normalization between a convolution and its activation, and the way back through it."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._head import cross_entropy


@triton.jit
def batch_of(
    sums, squares, c, ROWS: tl.constexpr, BATCH: tl.constexpr, OUT: tl.constexpr, PIXELS: tl.constexpr, BB: tl.constexpr
):
    """Mean and variance of some channels over the batch, from the sums of its samples."""
    total = tl.zeros_like(c).to(tl.float32)
    square = tl.zeros_like(c).to(tl.float32)
    for start in range(0, BATCH, BB):
        n = start + tl.arange(0, BB)
        mask = (n < BATCH)[:, None] & (c < OUT)[None, :]
        at = n[:, None] * ROWS + c[None, :]
        total += tl.sum(tl.load(sums + at, mask=mask, other=0.0), 0)
        square += tl.sum(tl.load(squares + at, mask=mask, other=0.0), 0)
    mean = total / (BATCH * PIXELS)
    return mean, tl.maximum(square / (BATCH * PIXELS) - mean * mean, 0.0)


@triton.jit
def remember(running, batch, c, mean, var, eps, momentum, ROWS: tl.constexpr, OUT: tl.constexpr, COUNT: tl.constexpr):
    """Running averages, and what the way back needs."""
    own = c < OUT
    old = tl.load(running + c, mask=own, other=0.0)
    tl.store(running + c, old + momentum * (mean - old), mask=own)
    old = tl.load(running + ROWS + c, mask=own, other=0.0)
    tl.store(running + ROWS + c, old + momentum * (var * (COUNT / (COUNT - 1)) - old), mask=own)
    tl.store(batch + c, mean, mask=own)
    tl.store(batch + ROWS + c, 1.0 / tl.sqrt(var + eps), mask=own)


@triton.jit
def normalize_kernel(
    response,
    sums,
    squares,
    inner,
    factor,
    summand,
    running,
    batch,
    active,
    out,
    row_at,
    eps,
    momentum,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    OW: tl.constexpr,
    FRAME: tl.constexpr,
    SLOPE: tl.constexpr,
    TILES: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    """Programs (tile of pixels of a sample, tile of channels, model): the activation of ``(z + h) A + B``."""
    pid, model = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    n = pid // TILES
    p = (pid % TILES) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    lines = model * (LIMIT * ROWS) + row_at
    mean, var = batch_of(sums + lines, squares + lines, c, ROWS, BATCH, OUT, PIXELS, BB)
    if pid == 0:
        both = model * (2 * ROWS) + row_at
        remember(running + both, batch + both, c, mean, var, eps, momentum, ROWS, OUT, BATCH * PIXELS)
    own = c < OUT
    h = tl.load(inner + model * ROWS + row_at + c, mask=own, other=0.0)
    a = tl.load(factor + lines + n * ROWS + c, mask=own, other=0.0)
    b = tl.load(summand + lines + n * ROWS + c, mask=own, other=0.0)
    scale = a / tl.sqrt(var + eps)
    shift = h * a + b - mean * scale
    maps = (model * LIMIT + n) * (PIXELS * OUT)
    mask = (p < PIXELS)[:, None] & own[None, :]
    place = p[:, None] * OUT + c[None, :]
    u = tl.load(response + maps + place, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if FRAME > 0:
        OH: tl.constexpr = PIXELS // OW
        maps = (model * LIMIT + n) * ((OH + 2 * FRAME) * (OW + 2 * FRAME) * OUT)
        place = ((p // OW + FRAME) * (OW + 2 * FRAME) + p % OW + FRAME)[:, None] * OUT + c[None, :]
    tl.store(out + maps + place, tl.where(u > 0, u, SLOPE * u).to(out.dtype.element_ty), mask=mask)


@triton.jit
def batch_head_kernel(
    sums,
    squares,
    inner,
    factor,
    summand,
    targets,
    running,
    batch,
    active,
    for_factor,
    for_summand,
    losses,
    out,
    row_at,
    eps,
    momentum,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    BP: tl.constexpr,
    BO: tl.constexpr,
    BB: tl.constexpr,
):
    """Programs (sample, model): mean over the pixels, loss, and the gradient of the last normalized response."""
    n, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    o = tl.arange(0, BO)
    own = o < OUT
    lines = model * (LIMIT * ROWS) + row_at
    mean, var = batch_of(sums + lines, squares + lines, o, ROWS, BATCH, OUT, PIXELS, BB)
    if n == 0:
        both = model * (2 * ROWS) + row_at
        remember(running + both, batch + both, o, mean, var, eps, momentum, ROWS, OUT, BATCH * PIXELS)
    at = lines + n * ROWS + o
    response = tl.load(sums + at, mask=own, other=0.0) / PIXELS
    z = (response - mean) / tl.sqrt(var + eps) + tl.load(inner + model * ROWS + row_at + o, mask=own, other=0.0)
    scale = tl.load(factor + at, mask=own, other=0.0)
    logit = z * scale + tl.load(summand + at, mask=own, other=0.0)
    loss, grad = cross_entropy(logit, o, tl.load(targets + model * LIMIT + n), OUT)
    tl.store(losses + model * LIMIT + n, loss)
    grad /= BATCH
    tl.store(for_factor + at, grad * (response - mean) / tl.sqrt(var + eps), mask=own)
    tl.store(for_summand + at, grad, mask=own)
    back = (grad * scale / PIXELS).to(out.dtype.element_ty)
    out += (model * LIMIT + n) * (PIXELS * OUT)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        mask = (p < PIXELS)[:, None] & own[None, :]
        tl.store(out + p[:, None] * OUT + o[None, :], tl.broadcast_to(back[None, :], (BP, BO)), mask=mask)


@triton.jit
def unnormalize_kernel(
    grad,
    response,
    batch,
    factor,
    for_factor,
    for_summand,
    active,
    row_at,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    TILES: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    """Programs (tile of pixels of a sample, tile of channels, model).

    ``g`` of the normalized response becomes ``(g - mean(g) - z mean(g z)) / sigma`` of the response, in place.
    """
    pid, model = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    n = pid // TILES
    p = (pid % TILES) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    own = c < OUT
    mean = tl.load(batch + model * (2 * ROWS) + row_at + c, mask=own, other=0.0)
    inverse = tl.load(batch + model * (2 * ROWS) + ROWS + row_at + c, mask=own, other=0.0)
    total = tl.zeros((BN,), dtype=tl.float32)
    along = tl.zeros((BN,), dtype=tl.float32)
    lines = model * (LIMIT * ROWS) + row_at
    for start in range(0, BATCH, BB):
        i = start + tl.arange(0, BB)
        mask = (i < BATCH)[:, None] & own[None, :]
        at = i[:, None] * ROWS + c[None, :]
        a = tl.load(factor + lines + at, mask=mask, other=0.0)
        g = a * tl.load(for_summand + lines + at, mask=mask, other=0.0)
        total += tl.sum(g, 0)
        along += tl.sum(a * tl.load(for_factor + lines + at, mask=mask, other=0.0), 0)
    total /= BATCH * PIXELS
    along /= BATCH * PIXELS
    maps = (model * LIMIT + n) * (PIXELS * OUT)
    mask = (p < PIXELS)[:, None] & own[None, :]
    place = p[:, None] * OUT + c[None, :]
    z = tl.load(response + maps + place, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(grad + maps + place, mask=mask, other=0.0).to(tl.float32)
    z = (z - mean[None, :]) * inverse[None, :]
    g = (g - total[None, :] - z * along[None, :]) * inverse[None, :]
    tl.store(grad + maps + place, g.to(grad.dtype.element_ty), mask=mask)
