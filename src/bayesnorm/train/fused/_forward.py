"""A convolution as a product of gathered rows, with the drawn scale and the activation in its last lines.

A tile of the result has ``BN + BN2`` columns, the second part possibly none: 96 and 192 are no powers of two.

Maps that the next convolution pads stand in a frame of zeros (``PAD`` pixels around the input, ``FRAME`` around the
output), so that no tap is outside. Rows beyond the last are those of the last: what is masked is never far away.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._sums import save_sums


@triton.jit
def per_sample(
    table,
    first,
    n,
    o,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    BM: tl.constexpr,
):
    """Values of a table per sample and channel for the rows of a tile: of one sample, of two, or of many."""
    if PIXELS % BM == 0:
        return tl.load(table + first * ROWS + o, mask=o < OUT, other=0.0)[None, :]
    elif PIXELS >= BM:
        near = tl.load(table + first * ROWS + o, mask=o < OUT, other=0.0)
        far = tl.load(table + tl.minimum(first + 1, BATCH - 1) * ROWS + o, mask=o < OUT, other=0.0)
        return tl.where((n == first)[:, None], near[None, :], far[None, :])
    else:
        mask = (n < BATCH)[:, None] & (o < OUT)[None, :]
        return tl.load(table + n[:, None] * ROWS + o[None, :], mask=mask, other=0.0)


@triton.jit
def activate(
    acc,
    o,
    r,
    inside,
    n,
    spot,
    first,
    inner,
    factor,
    summand,
    out,
    sums,
    start_row,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    SLOPE: tl.constexpr,
    ACTIVATE: tl.constexpr,
    PARTS: tl.constexpr,
    BM: tl.constexpr,
):
    """Store the activation of ``(response + h) A + B``, or the response itself and its sums."""
    keep = inside[:, None] & (o < OUT)[None, :]
    if ACTIVATE:
        h = tl.load(inner + o, mask=o < OUT, other=0.0)
        u = (acc + h[None, :]) * per_sample(factor, first, n, o, ROWS, BATCH, OUT, PIXELS, BM)
        u += per_sample(summand, first, n, o, ROWS, BATCH, OUT, PIXELS, BM)
        place = spot[:, None] * OUT + o[None, :]
        tl.store(out + place, tl.where(u > 0, u, SLOPE * u).to(out.dtype.element_ty), mask=keep)
    else:
        z = acc.to(out.dtype.element_ty)
        tl.store(out + r[:, None] * OUT + o[None, :], z, mask=keep)
        if PARTS > 0:
            square = z.to(tl.float32) * z.to(tl.float32)
            other = square.to(z.dtype)
            rest = (square - other.to(tl.float32)).to(z.dtype)  # of the square of a half, nothing is lost
            save_sums(z, other, rest, sums, start_row, 0, o, BATCH * PIXELS, PIXELS, PARTS, OUT, BM)


@triton.jit
def forward_kernel(
    x,
    effective,
    inner,
    factor,
    summand,
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
    FRAME: tl.constexpr,
    SLOPE: tl.constexpr,
    ACTIVATE: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BN2: tl.constexpr,
    BK: tl.constexpr,
):
    """Programs (tile of pixels, tile of channels, model); ``PARTS``: of the sums over a sample, 0 if there are none."""
    model = tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    K: tl.constexpr = KH * KW * C
    PIXELS: tl.constexpr = OH * OW
    HP: tl.constexpr = H + 2 * PAD
    WP: tl.constexpr = W + 2 * PAD
    start_row = tl.program_id(0) * BM
    r = start_row + tl.arange(0, BM)
    o = tl.program_id(1) * (BN + BN2) + tl.arange(0, BN)
    if BN2 > 0:
        o2 = tl.program_id(1) * (BN + BN2) + BN + tl.arange(0, BN2)
        acc2 = tl.zeros((BM, BN2), dtype=tl.float32)
    inside = r < BATCH * PIXELS
    r = tl.minimum(r, BATCH * PIXELS - 1)
    n, p = r // PIXELS, r % PIXELS
    oy, ox = p // OW, p % OW
    x += model * (LIMIT * HP * WP * C)
    effective += model * weights + effective_at
    base = ((n * HP + oy * STRIDE) * WP + ox * STRIDE) * C
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        kh = k // (KW * C)
        along = k % (KW * C)
        mask = inside[:, None] & (k < K)[None, :]
        a = tl.load(x + base[:, None] + (kh * (WP * C) + along)[None, :], mask=mask, other=0.0)
        b = tl.load(effective + o[None, :] * K + k[:, None], mask=(k < K)[:, None] & (o < OUT)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if BN2 > 0:
            b = tl.load(
                effective + o2[None, :] * K + k[:, None], mask=(k < K)[:, None] & (o2 < OUT)[None, :], other=0.0
            )
            acc2 = tl.dot(a, b, acc2, input_precision=PRECISION)
    inner += model * ROWS + row_at
    factor += model * (LIMIT * ROWS) + row_at
    summand += model * (LIMIT * ROWS) + row_at
    out += model * (LIMIT * (OH + 2 * FRAME) * (OW + 2 * FRAME) * OUT)
    sums += model * (LIMIT * PARTS * 2 * OUT)
    spot = r
    if FRAME > 0:
        spot = (n * (OH + 2 * FRAME) + oy + FRAME) * (OW + 2 * FRAME) + ox + FRAME
    first = start_row // PIXELS
    # fmt: off
    activate(
        acc, o, r, inside, n, spot, first, inner, factor, summand, out, sums, start_row,
        ROWS, BATCH, OUT, PIXELS, SLOPE, ACTIVATE, PARTS, BM,
    )
    if BN2 > 0:
        activate(
            acc2, o2, r, inside, n, spot, first, inner, factor, summand, out, sums, start_row,
            ROWS, BATCH, OUT, PIXELS, SLOPE, ACTIVATE, PARTS, BM,
        )
    # fmt: on
