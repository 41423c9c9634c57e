"""Images and masks of fewer pixels: of each block of them one is made."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d


def averaged(images: Tensor, reduce: int) -> Tensor:
    """float32, or the bytes themselves where nothing is averaged."""
    return images if reduce == 1 else avg_pool2d(images.float(), reduce)


def most_frequent(masks: Tensor, reduce: int) -> Tensor:
    """Of each block: 0 unless more than half of it is cell, else the number that most of those pixels have."""
    blocks = masks.unflatten(2, (-1, reduce)).unflatten(1, (-1, reduce)).transpose(2, 3).flatten(3)
    ordered = blocks.sort(-1).values
    # How many before an element of a sorted block are like it; the first that has most of them wins.
    repeats = torch.arange(reduce * reduce) - torch.searchsorted(ordered, ordered)
    first = repeats.where(ordered > 0, -1).argmax(-1, keepdim=True)
    covered = (ordered > 0).sum(-1) > reduce * reduce // 2
    found: Tensor = ordered.gather(-1, first).squeeze(-1).where(covered, 0)
    return found
