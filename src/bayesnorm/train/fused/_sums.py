"""Sums over the pixels of each sample, per channel: made in the last lines of a convolution, or from its maps.

A convolution that makes them leaves two numbers for every ``BLOCK`` rows of a tile, whatever its size, so that they do
not depend on it; a block is of one sample.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from .tiles import BLOCK

SIZE = tl.constexpr(BLOCK)
LINES = tl.constexpr(16)  # fewer at a time the device does not multiply


@triton.jit
def save_sums(
    one,
    other,
    rest,
    sums,
    start_row,
    part,
    c,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    BM: tl.constexpr,
):
    """Store the sums of ``one`` and ``other + rest`` over blocks of rows; of ``ROWS``, each sample has ``PIXELS``.

    As products with a matrix of ones and zeros: a tensor core adds up a tile in the time of a few shuffles.
    """
    each: tl.constexpr = PIXELS // SIZE
    block = tl.arange(0, LINES)
    here = (block[:, None] == (tl.arange(0, BM) // SIZE)[None, :]).to(one.dtype)
    total = tl.dot(here, one, input_precision="ieee")
    along = tl.dot(here, other, input_precision="ieee")
    if rest is not None:
        along = tl.dot(here, rest, along, input_precision="ieee")
    keep = (block < BM // SIZE) & ((start_row + block * SIZE) < ROWS)
    block += start_row // SIZE
    at = sums + ((block // each) * PARTS + part * each + block % each)[:, None] * (2 * C) + c[None, :]
    keep = keep[:, None] & (c < C)[None, :]
    tl.store(at, total, mask=keep)
    tl.store(at + C, along, mask=keep)


@triton.jit
def unscale(total, along, factor, summand, h):
    """From the sums of ``g`` and ``g u``, with ``u = (response + h) A + B``, that of ``g response``; 0 if A is 0."""
    return tl.where(factor == 0, 0.0, (along - summand * total) / factor - h * total)


@triton.jit
def fold_kernel(
    sums,
    factor,
    summand,
    inner,
    active,
    one,
    other,
    row_at,
    ROWS: tl.constexpr,
    LIMIT: tl.constexpr,
    C: tl.constexpr,
    SCALED: tl.constexpr,
    PARTS: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
):
    """Programs (sample, tile of channels, model): add up the parts; ``SCALED``: gradients of ``B`` and ``A``."""
    n, model = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    c, part = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BP)
    keep = (part < PARTS)[:, None] & (c < C)[None, :]
    place = sums + ((model * LIMIT + n) * PARTS + part)[:, None] * (2 * C) + c[None, :]
    total = tl.sum(tl.load(place, mask=keep, other=0.0), 0)
    along = tl.sum(tl.load(place + C, mask=keep, other=0.0), 0)
    at = (model * LIMIT + n) * ROWS + row_at + c
    if SCALED:
        a = tl.load(factor + at, mask=c < C, other=0.0)
        b = tl.load(summand + at, mask=c < C, other=0.0)
        along = unscale(total, along, a, b, tl.load(inner + model * ROWS + row_at + c, mask=c < C, other=0.0))
    tl.store(one + at, total, mask=c < C)
    tl.store(other + at, along, mask=c < C)


@triton.jit
def maps_kernel(
    z,
    x,
    factor,
    summand,
    inner,
    active,
    one,
    other,
    row_at,
    ROWS: tl.constexpr,
    LIMIT: tl.constexpr,
    C: tl.constexpr,
    SCALED: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    PAD: tl.constexpr,
    SLOPE: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
):
    """Programs (sample, tile of channels, model): sums of a map, and of its product with another in a frame.

    ``SCALED``: gradients of ``B`` and ``A``, from that of a response and the activation.
    """
    n, model = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    z += (model * LIMIT + n) * (H * W * C)
    x += (model * LIMIT + n) * ((H + 2 * PAD) * (W + 2 * PAD) * C)
    totals = tl.zeros((BP, BN), dtype=tl.float32)
    alongs = tl.zeros((BP, BN), dtype=tl.float32)
    for start in range(0, H * W, BP):
        p = start + tl.arange(0, BP)
        keep = (p < H * W)[:, None] & (c < C)[None, :]
        spot = (p // W + PAD) * (W + 2 * PAD) + p % W + PAD
        g = tl.load(z + p[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
        u = tl.load(x + spot[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
        if SCALED and SLOPE > 0:
            u = tl.where(u > 0, u, u / SLOPE)
        totals += g
        alongs += g * u
    total, along = tl.sum(totals, 0), tl.sum(alongs, 0)
    at = (model * LIMIT + n) * ROWS + row_at + c
    if SCALED:
        a = tl.load(factor + at, mask=c < C, other=1.0)
        b = tl.load(summand + at, mask=c < C, other=0.0)
        inverse = tl.where(a == 0, 0.0, 1.0 / a)  # what comes in was multiplied by the scale
        total, along = total * inverse, along * inverse
        along = unscale(total, along, a, b, tl.load(inner + model * ROWS + row_at + c, mask=c < C, other=0.0))
    tl.store(one + at, total, mask=c < C)
    tl.store(other + at, along, mask=c < C)
