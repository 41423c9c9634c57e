"""Convolutions with many taps and few channels, stride 1: a row of taps is one stretch of memory.

Channels stand last, so that what a row of the filter sees of an image, ``taps x channels`` numbers, is contiguous,
whatever the number of channels: the product goes through it in blocks of ``BK``, and four channels fill a block as well
as sixty-four. Weights are laid out likewise and have zeros beyond the last tap, where the next pixels are read.

The image stands in a frame of zeros, with ``SLACK`` rows more below it: no read is outside.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl


@triton.jit
def large_kernel(
    x,
    weight,
    bias,
    out,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OUT: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCKS: tl.constexpr,
    SLACK: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Programs (some pixels of a row of an image): their responses, all channels."""
    WP: tl.constexpr = W + TAPS - 1
    HP: tl.constexpr = H + TAPS - 1 + SLACK
    across: tl.constexpr = (W + BM - 1) // BM
    row, first = tl.program_id(0) // across, (tl.program_id(0) % across) * BM
    n, y = (row // H).to(tl.int64), row % H
    at = first + tl.arange(0, BM)
    k, o = tl.arange(0, BK), tl.arange(0, BN)
    x += (n * HP + y) * (WP * C)
    pixels = x + tl.minimum(at, W - 1)[:, None] * C + k[None, :]
    weights = weight + k[:, None] * BN + o[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(TAPS * BLOCKS):
        a = tl.load(pixels + (i // BLOCKS) * (WP * C) + (i % BLOCKS) * BK)
        b = tl.load(weights + i * (BK * BN))
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + o, mask=o < OUT, other=0.0)[None, :]
    place = (row.to(tl.int64) * W + at)[:, None] * OUT + o[None, :]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=(at < W)[:, None] & (o < OUT)[None, :])


@triton.jit
def large_weight_kernel(
    x,
    grad,
    parts,
    rows,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OUT: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
    SLACK: tl.constexpr,
    EACH: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Programs (some of the weights, some rows of images): the gradient of the weights, a part each.

    ``LENGTH`` numbers belong to a row of taps, ``EACH`` rows of images, of ``rows``, to a part.
    """
    WP: tl.constexpr = W + TAPS - 1
    HP: tl.constexpr = H + TAPS - 1 + SLACK
    across: tl.constexpr = (W + BK - 1) // BK
    m, o, p = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    tap = tl.minimum(m // LENGTH, TAPS - 1)
    spots = tap * (WP * C) + m % LENGTH
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    start = tl.program_id(1) * EACH
    for i in range(EACH * across):
        row, at = start + i // across, (i % across) * BK + p
        there = at < tl.where(row < rows, W, 0)
        row, at = tl.minimum(row, rows - 1).to(tl.int64), tl.minimum(at, W - 1)
        base = ((row // H) * HP + row % H) * (WP * C)
        a = tl.load(x + base + spots[:, None] + at[None, :] * C)
        mask = there[:, None] & (o < OUT)[None, :]
        b = tl.load(grad + row * (W * OUT) + at[:, None] * OUT + o[None, :], mask=mask, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    parts += tl.program_id(1).to(tl.int64) * (TAPS * LENGTH * BN)
    tl.store(parts + m[:, None] * BN + o[None, :], acc, mask=(m < TAPS * LENGTH)[:, None])
