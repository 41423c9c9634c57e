"""What the first convolution sees: patches of the augmented images."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._draw import row_hash, uniform


@triton.jit
def moved(place, draw, size: tl.constexpr, flips: tl.constexpr, flip, shift: tl.constexpr):
    """Where a row or column of an augmented image comes from, as ``Augment`` has it."""
    if flips:
        place = tl.where(flip < 0.5, size - 1 - place, place)
    if shift > 0:
        steps: tl.constexpr = 2 * shift + 1
        place += tl.minimum((draw * steps).to(tl.int32), steps - 1) - shift
    return place


@triton.jit
def patches_kernel(
    images,
    labels,
    order,
    place,
    step,
    keys,
    columns,
    mean,
    std,
    active,
    patches,
    targets,
    samples,
    LIMIT: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    K: tl.constexpr,
    SHIFT: tl.constexpr,
    HFLIP: tl.constexpr,
    VFLIP: tl.constexpr,
    TILES: tl.constexpr,
    BP: tl.constexpr,
):
    """Programs (tile of pixels of a sample, model): what is around them, standardized and augmented; the labels."""
    n, model = tl.program_id(0) // TILES, tl.program_id(1).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    chosen = tl.load(order + model * samples + tl.load(place + model) * LIMIT + n)
    tl.store(targets + model * LIMIT + n, tl.load(labels + chosen))
    row = row_hash(tl.load(keys + model), tl.load(step + model), n)
    patches += (model * LIMIT + n) * (OH * OW * K)
    p = (tl.program_id(0) % TILES) * BP + tl.arange(0, BP)
    k = tl.arange(0, K)
    c = k % C
    kh, kw = (k // C) // KW, (k // C) % KW
    y = (p // OW)[:, None] * STRIDE - PAD + kh[None, :]
    x = (p % OW)[:, None] * STRIDE - PAD + kw[None, :]
    inside = (p < OH * OW)[:, None] & (k < KH * KW * C)[None, :] & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    y = moved(y, uniform(row, tl.load(columns + 1)), H, VFLIP, uniform(row, tl.load(columns)), SHIFT)
    x = moved(x, uniform(row, tl.load(columns + 3)), W, HFLIP, uniform(row, tl.load(columns + 2)), SHIFT)
    inside = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    raw = tl.load(images + chosen * (C * H * W) + c[None, :] * (H * W) + y * W + x, mask=inside, other=0)
    value = (raw.to(tl.float32) - tl.load(mean + c)[None, :]) / tl.load(std + c)[None, :]
    value = tl.where(inside, value, 0.0).to(patches.dtype.element_ty)
    tl.store(patches + p[:, None] * K + k[None, :], value, mask=(p < OH * OW)[:, None])
