"""How well a segmentation covers what it should: IoU and Dice of pixels, SEG of objects."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .metrics import IGNORE


class Overlap(NamedTuple):
    """Agreement of the foreground, mean over its classes (all but the first) that are true or predicted somewhere.

    Arguments:
        iou: ``|A & B| / |A | B|`` of true and predicted pixels A and B, those of all images together.
        dice: ``2 |A & B| / (|A| + |B|)``.
    """

    iou: float
    dice: float


class OverlapTally:
    """Sums from which :class:`Overlap` follows; pixels whose target is ``ignore_index`` do not count.

    >>> tally = OverlapTally(2)
    >>> tally.update(torch.tensor([[0, 1, 1, 1]]), torch.tensor([[0, 0, 1, 1]]))
    >>> tally.compute()
    Overlap(iou=0.6666666666666666, dice=0.8)
    """

    def __init__(self, classes: int, ignore_index: int = IGNORE) -> None:
        self.ignore_index = ignore_index
        self._sums = torch.zeros(classes, 3, dtype=torch.int64)

    @property
    def sums(self) -> Tensor:
        """Pixels of each class that are predicted rightly, predicted, and true, ``(classes, 3)``."""
        return self._sums

    @torch.no_grad()
    def update(self, predicted: Tensor, targets: Tensor) -> None:
        """Add images.

        Arguments:
            predicted: classes ``(N, *space)``.
            targets: int64 classes, likewise.
        """
        if predicted.shape != targets.shape:
            raise ValueError(f"predicted classes {tuple(predicted.shape)} for targets {tuple(targets.shape)}")
        counts = targets != self.ignore_index
        rows = []
        for index in range(len(self._sums)):
            said, true = (predicted == index) & counts, (targets == index) & counts
            rows.append(torch.stack([(said & true).sum(), said.sum(), true.sum()]))
        self._sums = self._sums.to(targets.device) + torch.stack(rows)

    def compute(self) -> Overlap:
        """Of what was added; 1 where there is no foreground and none was predicted."""
        right, said, true = self._sums[1:].double().unbind(1)
        there = said + true > 0
        if not bool(there.any()):
            return Overlap(1.0, 1.0)
        right, both = right[there], (said + true)[there]
        return Overlap((right / (both - right)).mean().item(), (2 * right / both).mean().item())


class ObjectTally:
    """SEG of the Cell Tracking Challenge: the mean of ``|R & S| / |R | S|`` over all true objects R of all images.

    S is the predicted object with ``|R & S| > |R| / 2``; R counts 0 where there is none. Predicted objects are the
    components of the predicted foreground, connected by edges of pixels.

    >>> tally = ObjectTally()
    >>> tally.update(torch.tensor([[[1, 1, 0, 1]]]), torch.tensor([[[7, 7, 7, 0]]]))
    >>> round(tally.compute(), 4)
    0.6667
    """

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0

    def update(self, predicted: Tensor, objects: Tensor) -> None:
        """Add images.

        Arguments:
            predicted: classes ``(N, H, W)``; 0 is background.
            objects: number of the true object at each pixel ``(N, H, W)``, 0 where there is none.
        """
        if predicted.shape != objects.shape or predicted.dim() != 3:
            raise ValueError(
                f"predicted classes {tuple(predicted.shape)} for objects {tuple(objects.shape)}: pass (N, H, W) of both"
            )
        for said, true in zip(predicted.cpu() != 0, objects.cpu(), strict=True):
            found = seg_of_objects(components(said), true)
            self._total, self._count = self._total + found.sum().item(), self._count + len(found)

    def compute(self) -> float | None:
        """SEG of what was added; None without a true object."""
        return self._total / self._count if self._count else None


def components(foreground: Tensor) -> Tensor:
    """Number of the connected component at each pixel ``(H, W)``, from 1; 0 is background."""
    from scipy.ndimage import label

    found, _ = label(foreground.numpy())
    numbers: Tensor = torch.from_numpy(found).long()
    return numbers


def seg_of_objects(predicted: Tensor, true: Tensor) -> Tensor:
    """Jaccard index of every true object with the predicted one that covers more than half of it, or 0.

    Arguments:
        predicted: number of the predicted object at each pixel ``(H, W)``, 0 where there is none.
        true: of the true object, likewise.

    Returns:
        float64, by the number of the true object.

    >>> seg_of_objects(torch.tensor([[1, 1, 1, 2]]), torch.tensor([[5, 5, 6, 6]]))
    tensor([0.6667, 0.0000], dtype=torch.float64)
    """
    _, rows = true.flatten().unique(return_inverse=True)
    names = true.unique()
    width = int(predicted.max()) + 1
    shared = torch.bincount(rows * width + predicted.flatten(), minlength=len(names) * width).view(-1, width).double()
    sizes, theirs = shared.sum(1, keepdim=True), shared.sum(0, keepdim=True)
    matched = shared / (sizes + theirs - shared)
    matched[shared <= sizes / 2] = 0
    matched[:, 0] = 0
    return matched[names != 0].sum(1)  # at most one object covers more than half
