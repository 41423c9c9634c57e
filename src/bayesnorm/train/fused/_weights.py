"""The gradient of a convolution's weight, in parts that are added up."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl


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
    UNIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BN2: tl.constexpr,
    BK: tl.constexpr,
):
    """Programs (tile of the weight, part of the pixels, model): gradient of the effective weight, a part each.

    A part is a multiple of ``UNIT`` pixels, whatever the tile.
    """
    model = tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    K: tl.constexpr = KH * KW * C
    HP: tl.constexpr = H + 2 * PAD
    WP: tl.constexpr = W + 2 * PAD
    tiles: tl.constexpr = (OUT + BN + BN2 - 1) // (BN + BN2)
    pixels: tl.constexpr = BATCH * OH * OW
    each: tl.constexpr = ((pixels + SPLIT * UNIT - 1) // (SPLIT * UNIT)) * UNIT
    k = (tl.program_id(0) // tiles) * BM + tl.arange(0, BM)
    o = (tl.program_id(0) % tiles) * (BN + BN2) + tl.arange(0, BN)
    if BN2 > 0:
        o2 = (tl.program_id(0) % tiles) * (BN + BN2) + BN + tl.arange(0, BN2)
        acc2 = tl.zeros((BM, BN2), dtype=tl.float32)
    part = tl.program_id(1)
    x += model * (LIMIT * HP * WP * C)
    grad += model * (LIMIT * OH * OW * OUT)
    kh, along = k // (KW * C), k % (KW * C)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(part * each, part * each + each, BK):
        r = start + tl.arange(0, BK)
        there = r < pixels
        r = tl.minimum(r, pixels - 1)
        n, p = r // (OH * OW), r % (OH * OW)
        oy, ox = p // OW, p % OW
        base = ((n * HP + oy * STRIDE) * WP + ox * STRIDE) * C
        mask = there[None, :] & (k < K)[:, None]
        a = tl.load(x + base[None, :] + (kh * (WP * C) + along)[:, None], mask=mask, other=0.0)
        b = tl.load(grad + r[:, None] * OUT + o[None, :], mask=there[:, None] & (o < OUT)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if BN2 > 0:
            mask = there[:, None] & (o2 < OUT)[None, :]
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
