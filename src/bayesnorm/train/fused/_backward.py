"""The gradient of a convolution's input, with the way back through activation and scale in its last lines."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._forward import per_sample
from ._sums import save_sums


@triton.jit
def deactivate(
    acc,
    c,
    place,
    spot,
    inside,
    n,
    first,
    factor,
    before,
    out,
    sums,
    start_row,
    part,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    SLOPE: tl.constexpr,
    PARTS: tl.constexpr,
    BM: tl.constexpr,
):
    """Back through the activation and the scale of the layer before; with the sums for the scale and the shift."""
    keep = inside[:, None] & (c < C)[None, :]
    x = tl.load(before + spot[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
    grad = acc * tl.where(x > 0, 1.0, SLOPE)
    scaled = grad * per_sample(factor, first, n, c, ROWS, BATCH, C, PIXELS, BM)
    tl.store(out + place[:, None] * C + c[None, :], scaled.to(out.dtype.element_ty), mask=keep)
    if PARTS > 0:  # the slope is in the gradient or in the activation: g u = acc x
        kind = out.dtype.element_ty
        one, other = grad.to(kind), (acc * x).to(kind)
        save_sums(one, other, None, sums, start_row, part, c, BATCH * PIXELS, PIXELS, PARTS, C, BM)


@triton.jit
def backward_kernel(
    grad,
    effective,
    factor,
    before,
    active,
    out,
    sums,
    weights,
    effective_at,
    row_at,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OUT: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    SLOPE: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BN2: tl.constexpr,
    BK: tl.constexpr,
):
    """Gradient of the response of the layer before, from that of this layer's.

    Programs (tile of pixels of one residue class of the stride, tile of channels, model): only the taps that meet the
    class are multiplied. ``PARTS``: of the sums over a sample, all classes together; 0 if they are made elsewhere.
    """
    model = tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    CH: tl.constexpr = (H + STRIDE - 1) // STRIDE
    CW: tl.constexpr = (W + STRIDE - 1) // STRIDE
    tiles: tl.constexpr = (BATCH * CH * CW + BM - 1) // BM
    start_row = (tl.program_id(0) % tiles) * BM
    r = start_row + tl.arange(0, BM)
    c = tl.program_id(1) * (BN + BN2) + tl.arange(0, BN)
    if BN2 > 0:
        c2 = tl.program_id(1) * (BN + BN2) + BN + tl.arange(0, BN2)
        acc2 = tl.zeros((BM, BN2), dtype=tl.float32)
    last: tl.constexpr = BATCH * CH * CW - 1
    n, p = tl.minimum(r, last) // (CH * CW), tl.minimum(r, last) % (CH * CW)
    part = tl.program_id(0) // tiles
    if STRIDE == 1:
        kh0: tl.constexpr = 0
        kw0: tl.constexpr = 0
        taps_h: tl.constexpr = KH
        taps_w: tl.constexpr = KW
        y, col = p // CW, p % CW
    else:
        kh0 = (part // STRIDE + PAD) % STRIDE
        kw0 = (part % STRIDE + PAD) % STRIDE
        taps_h, taps_w = (KH - kh0 + STRIDE - 1) // STRIDE, (KW - kw0 + STRIDE - 1) // STRIDE
        y, col = (p // CW) * STRIDE + part // STRIDE, (p % CW) * STRIDE + part % STRIDE
    inside = (r <= last) & (y < H) & (col < W)
    oy, ox = (y + PAD - kh0) // STRIDE, (col + PAD - kw0) // STRIDE  # of the first tap
    base = ((n * OH + oy) * OW + ox) * OUT
    grad += model * (LIMIT * OH * OW * OUT)
    effective += model * weights + effective_at
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    # A block of the sum belongs to one tap, so that where it is found is one number, and what is outside one for a row.
    blocks: tl.constexpr = (OUT + BK - 1) // BK
    for step in range(0, taps_h * taps_w * blocks):
        tap, o = step // blocks, (step % blocks) * BK + tl.arange(0, BK)
        th, tw = tap // taps_w, tap % taps_w
        met = inside & (oy >= th) & (oy < OH + th) & (ox >= tw) & (ox < OW + tw)
        mask = met[:, None] & (o < OUT)[None, :]
        a = tl.load(grad + (base - (th * OW + tw) * OUT)[:, None] + o[None, :], mask=mask, other=0.0)
        at = (((kh0 + th * STRIDE) * KW + kw0 + tw * STRIDE) * C + o * (KH * KW * C))[:, None]
        b = tl.load(effective + at + c[None, :], mask=(o < OUT)[:, None] & (c < C)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if BN2 > 0:
            b = tl.load(effective + at + c2[None, :], mask=(o < OUT)[:, None] & (c2 < C)[None, :], other=0.0)
            acc2 = tl.dot(a, b, acc2, input_precision=PRECISION)
    factor += model * (LIMIT * ROWS) + row_at
    before += model * (LIMIT * (H + 2 * PAD) * (W + 2 * PAD) * C)
    out += model * (LIMIT * H * W * C)
    place = (n * H + y) * W + col
    spot = place
    if PAD > 0:
        spot = (n * (H + 2 * PAD) + y + PAD) * (W + 2 * PAD) + col + PAD
    sums += model * (LIMIT * PARTS * 2 * C)
    first = start_row // (CH * CW)
    # fmt: off
    deactivate(
        acc, c, place, spot, inside, n, first, factor, before, out, sums, start_row, part,
        ROWS, BATCH, C, CH * CW, SLOPE, PARTS, BM,
    )
    if BN2 > 0:
        deactivate(
            acc2, c2, place, spot, inside, n, first, factor, before, out, sums, start_row, part,
            ROWS, BATCH, C, CH * CW, SLOPE, PARTS, BM,
        )
    # fmt: on
