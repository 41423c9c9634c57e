"""The batches of training: which samples, and how they are augmented, at each step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from . import stream
from .base import Data, Split
from .stream import Purpose


@dataclass(frozen=True)
class Batch:
    """What one process computes on in one step.

    Arguments:
        images: standardized and augmented; those that only take part in the normalization come last.
        targets: of the first ``len(targets)`` images.
        whole: samples in the batch of all processes.
        samples: index of each image in the batch of all processes, which numbers its noise.
    """

    images: Tensor
    targets: Tensor
    whole: int
    samples: Tensor


class Batches:
    """Batch ``index`` of epoch ``epoch``, a function of the two and the seed alone.

    An epoch is a permutation of the training samples; its last batch may be short. With several processes each has a
    contiguous part of the batch.

    Arguments:
        data: whose training samples.
        batch: samples per step, over all processes.
        seed: of order and augmentation.
        norm_batch: number of samples over which batch norm takes its statistics: so many others are added to the batch.
        rank: number of this process.
        world: number of processes.
    """

    def __init__(
        self, data: Data, batch: int, seed: int, norm_batch: int | None = None, rank: int = 0, world: int = 1
    ) -> None:
        count = len(data.train)
        if not 1 <= batch <= count:
            raise DataError(f"batch={batch}: choose 1 to {count}, the number of training samples of {data.name}")
        if norm_batch is not None and not batch <= norm_batch <= count:
            raise DataError(f"norm_batch={norm_batch}: choose {batch} (the batch) to {count} (the training samples)")
        if min(batch, count % batch or batch) < world:
            raise DataError(
                f"batch={batch}: with {count} samples some batch has fewer than the {world} processes; choose another"
            )
        self.data, self.batch, self.seed, self.rank, self.world = data, batch, seed, rank, world
        self.others = 0 if norm_batch is None else norm_batch - batch
        self._epoch, self._order = -1, torch.empty(0)

    def __len__(self) -> int:
        return -(-len(self.data.train) // self.batch)

    def __call__(self, epoch: int, index: int) -> Batch:
        """One batch; numbers count from 0."""
        order = self.permutation(epoch)
        first = index * self.batch
        chosen = order[first : first + self.batch]
        whole = len(chosen)
        mine = self._share(whole)
        picked, numbers = chosen[mine], torch.arange(mine.start, mine.stop, device=order.device)
        if self.others:
            extra = self._share(self.others)
            picked = torch.cat([picked, self.normalizing(epoch, index)[extra]])
            numbers = torch.cat([numbers, torch.arange(whole + extra.start, whole + extra.stop, device=order.device)])
        rows = stream.rows(self.seed, Purpose.AUGMENT, epoch * len(self) + index, numbers)
        images, targets = augmented(self.data, self.data.train[picked], rows)
        return Batch(images, targets[: mine.stop - mine.start], whole, numbers)

    def normalizing(self, epoch: int, index: int) -> Tensor:
        """Samples ``(others,)`` that only take part in the normalization: any but those of the batch, none twice."""
        order, first = self.permutation(epoch), index * self.batch
        rest = torch.cat([order[first + self.batch :], order[:first]])
        shuffle = stream.permutation(self.seed, Purpose.OTHERS, epoch * len(self) + index, len(rest), rest.device)
        return rest[shuffle[: self.others]]

    def permutation(self, epoch: int) -> Tensor:
        """Order of the samples in an epoch."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = stream.permutation(self.seed, Purpose.ORDER, epoch, len(self.data.train), self.data.device)
        return self._order

    def _share(self, count: int) -> slice:
        """This process's part of ``count`` things."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)


def augmented(data: Data, split: Split, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Standardized, augmented images and their targets."""
    masks = split.targets if data.per_pixel else None
    images, moved = data.augment(data.standardized(split.images), rows, masks)
    return images, split.targets if moved is None else moved
