"""Whole splits, a few images at a time, as evaluation and statistics need them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from .. import noise
from . import stream
from .base import Data
from .batches import augmented
from .stream import Purpose

PIXELS = 1 << 19
"""Pixels that are worked on at a time."""
MORE = 4
"""Times as many on a GPU, where a small pass is nothing but launches."""

_PURPOSE = {"train": Purpose.AUGMENT_TRAINING_EVALUATION, "val": Purpose.AUGMENT_VALIDATION}


def images_of(
    data: Data, part: str, seed: int = 0, limit: int | None = None, rank: int = 0, world: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Standardized images and targets of a split, in order.

    Training images are augmented, as they were when trained on, and validation images where the data says so: in the
    same way at every pass. Test images never are.

    Arguments:
        data: the data set.
        part: ``"train"``, ``"val"`` or ``"test"``.
        seed: of the augmentation.
        limit: at most so many samples, from the first.
        rank: with several processes, each gets its own contiguous part.
        world: number of processes.
    """
    split = data.part(part)
    count = len(split) if limit is None else min(limit, len(split))
    size = _chunk(data)
    last = count * (rank + 1) // world
    for first in range(count * rank // world, last, size):
        piece = split[first : min(first + size, last)]
        if moves(data, part):
            purpose = _PURPOSE[part]
            samples = torch.arange(first, first + len(piece), device=data.device)
            yield augmented(data, piece, stream.rows(seed, purpose, 0, samples))
        else:
            yield data.standardized(piece.images), piece.targets


def moves(data: Data, part: str) -> bool:
    """Whether :func:`images_of` augments the images of a split."""
    return part == "train" or (part == "val" and data.augment_val)


def training_images(data: Data, seed: int = 0, limit: int | None = None) -> Iterator[Tensor]:
    """Training images as the network will see them, augmented once."""
    count = len(data.train) if limit is None else min(limit, len(data.train))
    order = stream.permutation(seed, Purpose.INITIALIZATION, 0, len(data.train), data.device)[:count]
    for chosen in order.split(_chunk(data)):
        yield augmented(data, data.train[chosen], stream.rows(seed, Purpose.INPUT_STATISTICS, 0, chosen))[0]


def resampled(data: Data, batch: int, seed: int = 0) -> Iterator[Tensor]:
    """Endless training batches ``(batch, C, H, W)`` of images drawn with replacement, augmented: all independent.

    >>> from bayesnorm.data.digits import digits
    >>> next(resampled(digits(), 5)).shape
    torch.Size([5, 1, 8, 8])
    """
    for step in itertools.count():
        rows = stream.rows(seed, Purpose.RESAMPLING, step, torch.arange(batch, device=data.device))
        draw = noise.uniform(rows, noise.columns(2, 1, rows.device)).flatten()
        chosen = (draw.double() * len(data.train)).long().clamp(max=len(data.train) - 1)
        yield augmented(data, data.train[chosen], rows)[0]


def input_statistics(data: Data, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel of the augmented, standardized training images, for ``convert(input_stats=)``."""
    total = square = 0.0 * data.mean.double()
    count = 0
    for images in training_images(data, seed):
        wide = images.double()
        total, square = total + wide.sum((0, 2, 3)), square + wide.square().sum((0, 2, 3))
        count += wide.numel() // wide.size(1)
    mean = total / count
    return mean.float(), (square / count - mean.square()).clamp(min=0).float()


def _chunk(data: Data) -> int:
    height, width = data.image_size[1:]
    pixels = PIXELS * (MORE if data.device.type == "cuda" else 1)
    return max(1, pixels // (height * width))
