"""Pictures of handwritten digits in uneven light: every pixel is stroke or background, without a download."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import noise
from ..errors import DataError
from . import stream
from .augment import Augment
from .base import Data, Split, divide, make_data
from .digits import digits
from .stream import Purpose

CLASSES = ("background", "stroke")
SEED = 0
"""The images are the same for every split seed."""

DIGITS = (2, 4)
"""Fewest and most digits of an image."""
SIDES = (12, 16)
"""Smallest and largest side in pixels to which an 8 x 8 digit is enlarged."""
INK, THRESHOLD = 16, 8
"""Largest value of scikit-learn's pixels; from which value on a pixel of the enlarged digit is stroke."""

DARKEST, BRIGHTEST = 0.3, 1.7
"""Light at the knots between which the illumination is smooth."""
KNOTS = 3
PAPER, CONTRAST, NOISE = 40.0, 100.0, 8.0
"""Grey level of the background, what full ink adds to it, and std of the noise of a pixel."""


def strokes(split_seed: int = 0, count: int = 60, size: int = 32) -> Data:
    """Two to four of scikit-learn's digits on a canvas, in uneven light and with noise: a small segmentation task.

    ``image = light * (40 + 100 ink) + 8 noise`` in 8 bits: light is a smooth field between 0.3 and 1.7, so that no
    threshold for a whole image will do, ink the largest of the enlarged digits at a pixel, in 0 to 1. A pixel is
    stroke where the ink is at least half.

    70/30 into training and validation by seed, as the cells are, and as many for testing as for validation, made of
    digits that are in no other image. Mirrored both ways and smoothly deformed in training.

    Arguments:
        split_seed: decides which images are for validation.
        count: images for training and validation.
        size: height and width of an image in pixels.

    >>> data = strokes()
    >>> len(data.train), len(data.val), len(data.test), data.image_size
    (42, 18, 18, (1, 32, 32))
    """
    if count < 2:
        raise DataError(f"count={count}: at least 2 images are needed for training and validation")
    if size < SIDES[1]:
        raise DataError(f"size={size}: at least {SIDES[1]} is needed, the side of the largest digit")
    found = digits()
    train, val = divide(_drawn(torch.cat([found.train.images, found.val.images]), count, size, 0), 0.7, split_seed)
    test = _drawn(found.test.images, len(val), size, 1)
    return make_data("strokes", train, val, test, CLASSES, Augment(hflip=True, vflip=True, deform=1.0, spacing=16))


def _drawn(pool: Tensor, count: int, size: int, part: int) -> Split:
    """Images of digits of the pool; image ``i`` of a part does not depend on how many there are.

    Computed in float64 on the CPU, so that every machine gets the same bytes.
    """
    rows = stream.rows(SEED, Purpose.STROKES, part, torch.arange(count))
    ink = torch.stack([_ink(pool, draws, size) for draws in noise.uniform(rows, noise.columns(0, 1 + 4 * DIGITS[1]))])
    knots = noise.uniform(rows, noise.columns(1, KNOTS**2)).double().view(count, 1, KNOTS, KNOTS)
    light = F.interpolate(DARKEST + (BRIGHTEST - DARKEST) * knots, (size, size), mode="bilinear", align_corners=True)
    grain = noise.normal(rows, noise.columns(2, size**2)).double().view(count, 1, size, size)
    images = light * (PAPER + CONTRAST / INK * ink.unsqueeze(1)) + NOISE * grain
    return Split(images.round().clamp(0, 255).to(torch.uint8), (ink >= THRESHOLD).long())


def _ink(pool: Tensor, draws: Tensor, size: int) -> Tensor:
    """Digits on a clean canvas ``(size, size)``, from uniform draws: how many, then which, how large, and where."""
    canvas = torch.zeros(size, size, dtype=torch.float64)
    for draw in draws[1:].view(-1, 4)[: _whole(draws[0], *DIGITS)]:
        side = _whole(draw[1], *SIDES)
        top, left = (_whole(u, 0, size - side) for u in draw[2:])
        place = canvas[top : top + side, left : left + side]
        torch.maximum(place, enlarged(pool[_whole(draw[0], 0, len(pool) - 1)], side), out=place)
    return canvas


def enlarged(digit: Tensor, side: int) -> Tensor:
    """An image ``(1, H, W)`` as ``(side, side)``, bilinear, in float64."""
    smooth = F.interpolate(digit[None].double(), (side, side), mode="bilinear", align_corners=False)[0, 0]
    # Values on the threshold are met exactly: the last bit of an interpolation must not decide on a pixel of the mask.
    return (smooth * 2**20).round() / 2**20


def _whole(u: Tensor, low: int, high: int) -> int:
    """Whole number in ``low`` to ``high``, both included, from a uniform draw."""
    return low + int(u.double() * (high - low + 1))
