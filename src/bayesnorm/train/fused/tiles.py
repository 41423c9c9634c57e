"""How the work of each convolution is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .chain import Link


@dataclass(frozen=True)
class Tile:
    """Sizes of a block of a product, and how a program is laid out.

    Arguments:
        rows: of the result.
        columns: of the result, a power of two,
        more: and so many besides, another or none.
        depth: of the sum, at a time.
        warps: in a program.
        stages: of the software pipeline.
        split: parts of the sum, added later.
    """

    rows: int
    columns: int
    depth: int
    more: int = 0
    warps: int = 4
    stages: int = 3
    split: int = 1


ENOUGH = 80
"""Programs that keep the device busy; with fewer, smaller tiles are faster."""
PLENTY = 256
"""So many that the largest tiles are fastest."""
DEPTH = 64
SHALLOW = 16
"""Fewer at a time the device does not multiply."""
BLOCK = 64
"""Rows of a tile that are added up, where a convolution makes sums over pixels; every tile has a multiple of them."""


def forward_tile(link: Link, batch: int, models: int) -> Tile:
    """For the response."""
    return _tile(batch * link.pixels, link.outputs, link.length, models)


def backward_tile(link: Link, batch: int, models: int) -> Tile:
    """For the gradient of the input, class by class of the stride; a block of the sum is of one tap of the kernel."""
    classes = link.stride**2
    pixels = -(-link.height // link.stride) * -(-link.width // link.stride)
    tile = _tile(batch * pixels, link.inputs, link.outputs * link.kernel[0] * link.kernel[1], models * classes)
    depth = next((depth for depth in (64, 32) if link.outputs % depth == 0), SHALLOW)
    return replace(tile, depth=depth, stages=tile.stages + (depth < DEPTH))


def weight_tile(link: Link, batch: int, models: int = 1) -> Tile:
    """For the gradient of the weight; the sum runs over the pixels.

    Its parts do not hang on the number of models: another division of the sum would give other last digits.
    """
    pixels = batch * link.pixels
    rows = 128 if pixels >= 16384 and link.length > 64 else 64
    main, more = _whole(link.outputs) if link.length > 64 else (32, 0)
    split = _split(link, pixels, rows, main + more)
    if -(-link.length // rows) * -(-link.outputs // (main + more)) * split < ENOUGH and link.length > 64:
        main, more = min(64, main), 0
        split = _split(link, pixels, rows, main)
    high, (wide, rest) = 128, _whole(link.outputs)
    if -(-link.length // high) * -(-link.outputs // (wide + rest)) * split * models >= PLENTY and link.length > 64:
        return Tile(high, wide, DEPTH // 2, rest, stages=4, split=split)
    return Tile(rows, main, DEPTH, more, split=split)


def forward_parts(link: Link) -> int:
    """Blocks of a sample in the sums of a response; 0 if a block would be of two samples."""
    return 0 if link.pixels % BLOCK else link.pixels // BLOCK


def backward_parts(link: Link) -> int:
    """Likewise of the gradient of the input, all classes of the stride together."""
    pixels = -(-link.height // link.stride) * -(-link.width // link.stride)
    return 0 if pixels % BLOCK else link.stride**2 * pixels // BLOCK


def _split(link: Link, pixels: int, rows: int, columns: int) -> int:
    """Parts of the sum: enough programs, and at least eight blocks in each part."""
    tiles = -(-link.length // rows) * -(-link.outputs // columns)
    return max(1, min(24, pixels // (8 * DEPTH), 112 // tiles))


def _tile(rows: int, columns: int, depth: int, models: int) -> Tile:
    """The largest of a few tiles of which there are enough; all add up in the same order."""
    main, more = _whole(columns)
    shapes = [(128, main, more), (64, main, more), (64, 64, 0), (64, 32, 0)]
    if main + more > 128 or depth <= 64:
        shapes = shapes[1:]
    for high, wide, rest in shapes:
        if -(-rows // high) * -(-columns // (wide + rest)) * models >= ENOUGH and (wide + rest <= columns or rest):
            break
    return Tile(high, wide, min(DEPTH, max(SHALLOW, power(depth))), rest, stages=3 if wide > 32 else 4)


def _whole(count: int) -> tuple[int, int]:
    """Powers of two that make up as many columns, or a part of them that divides them."""
    if count % 192 == 0:
        return 128, 64
    return (64, 32) if count % 96 == 0 else (64, 0) if count > 32 else (32, 0)


def power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
