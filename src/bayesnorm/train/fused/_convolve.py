"""Convolutions as products of gathered rows, with all that stands between two of them in their last lines.

A tile of the result has ``BN + BN2`` columns, the second part possibly none: 96 and 192 are no powers of two.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl


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
    """Values of a table per sample and channel for the rows of a tile, which is of two samples where maps are large."""
    if PIXELS >= BM:
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
    n,
    first,
    inner,
    factor,
    summand,
    response,
    out,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    SLOPE: tl.constexpr,
    ACTIVATE: tl.constexpr,
    BM: tl.constexpr,
):
    """Store a response, and the activation of ``(response + h) A + B``."""
    keep = (r < BATCH * PIXELS)[:, None] & (o < OUT)[None, :]
    place = r[:, None] * OUT + o[None, :]
    tl.store(response + place, acc.to(response.dtype.element_ty), mask=keep)
    if ACTIVATE:
        h = tl.load(inner + o, mask=o < OUT, other=0.0)
        u = (acc + h[None, :]) * per_sample(factor, first, n, o, ROWS, BATCH, OUT, PIXELS, BM)
        u += per_sample(summand, first, n, o, ROWS, BATCH, OUT, PIXELS, BM)
        tl.store(out + place, tl.where(u > 0, u, SLOPE * u).to(out.dtype.element_ty), mask=keep)


@triton.jit
def forward_kernel(
    x,
    effective,
    inner,
    factor,
    summand,
    active,
    response,
    out,
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
    ACTIVATE: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BN2: tl.constexpr,
    BK: tl.constexpr,
):
    """Programs (tile of pixels, tile of channels, model)."""
    model = tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    K: tl.constexpr = KH * KW * C
    PIXELS: tl.constexpr = OH * OW
    start_row = tl.program_id(0) * BM
    r = start_row + tl.arange(0, BM)
    o = tl.program_id(1) * (BN + BN2) + tl.arange(0, BN)
    if BN2 > 0:
        o2 = tl.program_id(1) * (BN + BN2) + BN + tl.arange(0, BN2)
        acc2 = tl.zeros((BM, BN2), dtype=tl.float32)
    inside = r < BATCH * PIXELS
    n, p = r // PIXELS, r % PIXELS
    oy, ox = p // OW, p % OW
    x += model * (LIMIT * H * W * C)
    effective += model * weights + effective_at
    base = ((n * H + oy * STRIDE - PAD) * W + ox * STRIDE - PAD) * C
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        kh = k // (KW * C)
        along = k % (KW * C)
        mask = inside[:, None] & (k < K)[None, :]
        if PAD > 0:
            y = (oy * STRIDE - PAD)[:, None] + kh[None, :]
            col = (ox * STRIDE - PAD)[:, None] + (along // C)[None, :]
            mask = mask & (y >= 0) & (y < H) & (col >= 0) & (col < W)
        a = tl.load(x + base[:, None] + (kh * (W * C) + along)[None, :], mask=mask, other=0.0)
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
    response += model * (LIMIT * PIXELS * OUT)
    out += model * (LIMIT * PIXELS * OUT)
    first = start_row // PIXELS
    activate(acc, o, r, n, first, inner, factor, summand, response, out, ROWS, BATCH, OUT, PIXELS, SLOPE, ACTIVATE, BM)
    if BN2 > 0:
        activate(
            acc2, o2, r, n, first, inner, factor, summand, response, out, ROWS, BATCH, OUT, PIXELS, SLOPE, ACTIVATE, BM
        )


@triton.jit
def deactivate(
    acc,
    c,
    place,
    inside,
    n,
    first,
    factor,
    before,
    out,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    C: tl.constexpr,
    PIXELS: tl.constexpr,
    SLOPE: tl.constexpr,
    BM: tl.constexpr,
):
    """Back through the activation and the scale of the layer before."""
    keep = inside[:, None] & (c < C)[None, :]
    at = place[:, None] * C + c[None, :]
    slope = tl.where(tl.load(before + at, mask=keep, other=0.0) > 0, 1.0, SLOPE)
    scaled = acc * slope * per_sample(factor, first, n, c, ROWS, BATCH, C, PIXELS, BM)
    tl.store(out + at, scaled.to(out.dtype.element_ty), mask=keep)


@triton.jit
def backward_kernel(
    grad,
    effective,
    factor,
    before,
    active,
    out,
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
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BN2: tl.constexpr,
    BK: tl.constexpr,
):
    """Gradient of the response of the layer before, from that of this layer's.

    Programs (tile of pixels of one residue class of the stride, tile of channels, model): only the taps that meet the
    class are multiplied.
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
    n, p = r // (CH * CW), r % (CH * CW)
    if STRIDE == 1:
        kh0: tl.constexpr = 0
        kw0: tl.constexpr = 0
        taps_h: tl.constexpr = KH
        taps_w: tl.constexpr = KW
        y, col = p // CW, p % CW
    else:
        part = tl.program_id(0) // tiles
        kh0 = (part // STRIDE + PAD) % STRIDE
        kw0 = (part % STRIDE + PAD) % STRIDE
        taps_h, taps_w = (KH - kh0 + STRIDE - 1) // STRIDE, (KW - kw0 + STRIDE - 1) // STRIDE
        y, col = (p // CW) * STRIDE + part // STRIDE, (p % CW) * STRIDE + part % STRIDE
    inside = (r < BATCH * CH * CW) & (y < H) & (col < W)
    oy, ox = (y + PAD - kh0) // STRIDE, (col + PAD - kw0) // STRIDE  # of the first tap
    base = ((n * OH + oy) * OW + ox) * OUT
    grad += model * (LIMIT * OH * OW * OUT)
    effective += model * weights + effective_at
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    total = taps_h * taps_w * OUT
    for start in range(0, total, BK):
        k = start + tl.arange(0, BK)
        tap, o = k // OUT, k % OUT
        th, tw = tap // taps_w, tap % taps_w
        at_y, at_x = oy[:, None] - th[None, :], ox[:, None] - tw[None, :]
        met = inside[:, None] & (k < total)[None, :] & (at_y >= 0) & (at_y < OH) & (at_x >= 0) & (at_x < OW)
        a = tl.load(grad + base[:, None] + (o - (th * OW + tw) * OUT)[None, :], mask=met, other=0.0)
        at = (o * (KH * KW * C) + ((kh0 + th * STRIDE) * KW + kw0 + tw * STRIDE) * C)[:, None]
        b = tl.load(effective + at + c[None, :], mask=(k < total)[:, None] & (c < C)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if BN2 > 0:
            b = tl.load(effective + at + c2[None, :], mask=(k < total)[:, None] & (c2 < C)[None, :], other=0.0)
            acc2 = tl.dot(a, b, acc2, input_precision=PRECISION)
    factor += model * (LIMIT * ROWS) + row_at
    before += model * (LIMIT * H * W * C)
    out += model * (LIMIT * H * W * C)
    place = (n * H + y) * W + col
    first = start_row // (CH * CW)
    deactivate(acc, c, place, inside, n, first, factor, before, out, ROWS, BATCH, C, CH * CW, SLOPE, BM)
    if BN2 > 0:
        deactivate(acc2, c2, place, inside, n, first, factor, before, out, ROWS, BATCH, C, CH * CW, SLOPE, BM)


@triton.jit
def weight_kernel(
    grad,
    x,
    active,
    parts,
    parts_at,
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
    PRECISION: tl.constexpr,
    MODEL: tl.constexpr,
    SPLIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BN2: tl.constexpr,
    BK: tl.constexpr,
):
    """Programs (tile of the weight, part of the pixels, model): gradient of the effective weight, a part each."""
    model = tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    K: tl.constexpr = KH * KW * C
    tiles: tl.constexpr = (OUT + BN + BN2 - 1) // (BN + BN2)
    pixels: tl.constexpr = BATCH * OH * OW
    each: tl.constexpr = ((pixels + SPLIT * BK - 1) // (SPLIT * BK)) * BK
    k = (tl.program_id(0) // tiles) * BM + tl.arange(0, BM)
    o = (tl.program_id(0) % tiles) * (BN + BN2) + tl.arange(0, BN)
    if BN2 > 0:
        o2 = (tl.program_id(0) % tiles) * (BN + BN2) + BN + tl.arange(0, BN2)
        acc2 = tl.zeros((BM, BN2), dtype=tl.float32)
    part = tl.program_id(1)
    x += model * (LIMIT * H * W * C)
    grad += model * (LIMIT * OH * OW * OUT)
    kh, along = k // (KW * C), k % (KW * C)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(part * each, part * each + each, BK):
        r = start + tl.arange(0, BK)
        n, p = r // (OH * OW), r % (OH * OW)
        oy, ox = p // OW, p % OW
        base = ((n * H + oy * STRIDE - PAD) * W + ox * STRIDE - PAD) * C
        mask = (r < pixels)[None, :] & (k < K)[:, None]
        if PAD > 0:
            y = (oy * STRIDE - PAD)[None, :] + kh[:, None]
            col = (ox * STRIDE - PAD)[None, :] + (along // C)[:, None]
            mask = mask & (y >= 0) & (y < H) & (col >= 0) & (col < W)
        a = tl.load(x + base[None, :] + (kh * (W * C) + along)[:, None], mask=mask, other=0.0)
        b = tl.load(grad + r[:, None] * OUT + o[None, :], mask=(r < pixels)[:, None] & (o < OUT)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if BN2 > 0:
            mask = (r < pixels)[:, None] & (o2 < OUT)[None, :]
            b = tl.load(grad + r[:, None] * OUT + o2[None, :], mask=mask, other=0.0)
            acc2 = tl.dot(a, b, acc2, input_precision=PRECISION)
    parts += model * MODEL + parts_at + part * (OUT * K)
    tl.store(parts + o[None, :] * K + k[:, None], acc, mask=(k < K)[:, None] & (o < OUT)[None, :])
    if BN2 > 0:
        tl.store(parts + o2[None, :] * K + k[:, None], acc2, mask=(k < K)[:, None] & (o2 < OUT)[None, :])


@triton.jit
def sum_kernel(
    parts, active, parts_at, size, MODEL: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """Programs (some weights, model): add the parts up, in place of the first."""
    model = tl.program_id(1).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    parts += model * MODEL + parts_at
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(parts + tl.multiple_of(part * size, ALIGNED) + i, mask=i < size, other=0.0)
    tl.store(parts + i, total, mask=i < size)


@triton.jit
def scale_kernel(
    grad,
    response,
    factor,
    active,
    for_factor,
    for_summand,
    row_at,
    ROWS: tl.constexpr,
    LIMIT: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
):
    """Programs (sample, tile of channels, model): gradients of ``A`` and ``B``, sums over the pixels."""
    n, model = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    grad += (model * LIMIT + n) * (PIXELS * OUT)
    response += (model * LIMIT + n) * (PIXELS * OUT)
    products = tl.zeros((BN,), dtype=tl.float32)
    sums = tl.zeros((BN,), dtype=tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        mask = (p < PIXELS)[:, None] & (c < OUT)[None, :]
        place = p[:, None] * OUT + c[None, :]
        g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        products += tl.sum(g * tl.load(response + place, mask=mask, other=0.0).to(tl.float32), 0)
        sums += tl.sum(g, 0)
    at = (model * LIMIT + n) * ROWS + row_at + c
    scale = tl.load(factor + at, mask=c < OUT, other=1.0)
    inverse = tl.where(scale == 0, 0.0, 1.0 / scale)  # what comes in was multiplied by the scale
    tl.store(for_factor + at, products * inverse, mask=c < OUT)
    tl.store(for_summand + at, sums * inverse, mask=c < OUT)
