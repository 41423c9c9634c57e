"""A data set as tensors on one device: training, validation and test images with their targets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import DataError
from . import stream
from .augment import NOTHING, Augment
from .stream import Purpose

CHUNK = 256
"""Images that are worked on at a time where a whole split passes through."""


@dataclass(frozen=True)
class Split:
    """Images and what they show.

    Arguments:
        images: ``(N, C, H, W)``, uint8 or floating point.
        targets: int64, one class per image ``(N,)`` or per pixel ``(N, H, W)``, where ``IGNORE`` does not count.
        objects: number of the object at each pixel ``(N, H, W)``, 0 where there is none, for measures that count
            objects; None where they are not known. Nothing is trained on them.
    """

    images: Tensor
    targets: Tensor
    objects: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor | slice) -> Split:
        return Split(self.images[index], self.targets[index], None if self.objects is None else self.objects[index])

    def to(self, device: torch.device | str) -> Split:
        """The same on another device."""
        objects = None if self.objects is None else self.objects.to(device)
        return Split(self.images.to(device), self.targets.to(device), objects)


IGNORE = -100
"""Target of a pixel that is not annotated."""


@dataclass(frozen=True)
class Data:
    """A data set, split, with the standardization and augmentation that belong to it.

    Arguments:
        name: for messages and tables.
        train: the training samples.
        val: validation samples, for choices; never trained on.
        test: test samples, looked at once, never augmented.
        classes: name of each class.
        mean: of the training images per channel ``(C,)``, in the units of ``images``.
        std: likewise.
        augment: of training images.
        augment_val: whether validation images are augmented too, as in the paper.
        unused: samples that are there without being in any split, as nobody annotated them.
        span: values of black and white in images of floating point; None: the least and largest of the training images.
    """

    name: str
    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor
    augment: Augment = NOTHING
    augment_val: bool = False
    unused: int = 0
    span: tuple[float, float] | None = None

    @property
    def per_pixel(self) -> bool:
        """Whether every pixel has a class of its own (segmentation)."""
        return self.train.targets.dim() > 1

    @property
    def has_test(self) -> bool:
        """Whether there are test samples of their own; else ``test`` is ``val``."""
        return self.test is not self.val

    @property
    def image_size(self) -> tuple[int, ...]:
        """``(C, H, W)`` of one image."""
        return tuple(self.train.images.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.train.images.device

    def to(self, device: torch.device | str) -> Data:
        """The same on another device."""
        val = self.val.to(device)
        return replace(
            self,
            train=self.train.to(device),
            val=val,
            test=self.test.to(device) if self.has_test else val,
            mean=self.mean.to(device),
            std=self.std.to(device),
        )

    def part(self, name: str) -> Split:
        """The split of that name: ``"train"``, ``"val"`` or ``"test"``."""
        if name not in ("train", "val", "test"):
            raise DataError(f"split {name!r}: choose train, val or test")
        split: Split = getattr(self, name)
        return split

    def standardized(self, images: Tensor) -> Tensor:
        """``(images - mean) / std`` as float32: what the network sees."""
        shape = (1, -1, 1, 1)
        return (images.float() - self.mean.view(shape)) / self.std.view(shape)

    def digest(self) -> str:
        """SHA-256 of all images and targets, in their splits: equal digests mean equal data."""
        return _digest([part for split in self._splits() for part in (split.images, split.targets)])

    def objects_digest(self) -> str | None:
        """The same of the numbers of the objects, by which SEG judges; None where there are none."""
        objects = [split.objects for split in self._splits() if split.objects is not None]
        return _digest(objects) if objects else None

    def _splits(self) -> tuple[Split, Split, Split]:
        return self.train, self.val, self.test


def _digest(tensors: Sequence[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def make_data(
    name: str,
    train: Split,
    val: Split,
    test: Split,
    classes: tuple[str, ...],
    augment: Augment = NOTHING,
    augment_val: bool = False,
) -> Data:
    """Check the splits against each other and standardize by the training images.

    Usable with tensors of your own: images ``(N, C, H, W)``, targets ``(N,)`` or ``(N, H, W)``.

    >>> x, y = torch.rand(12, 1, 4, 4), torch.arange(12) % 3
    >>> data = make_data("mine", Split(x[:8], y[:8]), Split(x[8:10], y[8:10]), Split(x[10:], y[10:]), ("a", "b", "c"))
    >>> data.image_size, len(data.train)
    ((1, 4, 4), 8)
    """
    for part, split in (("train", train), ("val", val), ("test", test)):
        _check(f"{name}, {part}", split, len(classes), tuple(train.images.shape[1:]))
        if split.targets.dim() != train.targets.dim():
            raise DataError(f"{name}, {part}: one split has a class per image, another a class per pixel")
    mean, var = _moments(train.images)
    if not bool((var > 0).all()):
        channel = int((var <= 0).nonzero()[0])
        raise DataError(
            f"{name}: channel {channel} of the training images is constant, so that it says nothing and cannot be "
            "standardized: leave it out (pictures in one colour: convert them to grey)"
        )
    return Data(name, train, val, test, classes, mean, var.sqrt(), augment, augment_val)


def _check(where: str, split: Split, classes: int, size: tuple[int, ...]) -> None:
    images, targets = split.images, split.targets
    if images.dim() != 4 or len(images) == 0:
        raise DataError(f"{where}: images of shape {tuple(images.shape)}; (N, C, H, W) with N > 0 is needed")
    if tuple(images.shape[1:]) != size:
        raise DataError(f"{where}: images of size {tuple(images.shape[1:])}, but those of the training set have {size}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(f"{where}: images must be uint8 or floating point; got {images.dtype}")
    strange = int((~images.isfinite()).flatten(1).any(1).sum()) if images.is_floating_point() else 0
    if strange:
        raise DataError(f"{where}: {strange} of {len(images)} images hold NaN or inf: leave them out")
    if targets.dtype != torch.int64 or targets.shape not in (images.shape[:1], images.shape[:1] + images.shape[2:]):
        raise DataError(
            f"{where}: targets must be int64 of shape (N,) or (N, H, W), got {targets.dtype} {tuple(targets.shape)} "
            f"for images {tuple(images.shape)}"
        )
    if split.objects is not None and split.objects.shape != images.shape[:1] + images.shape[2:]:
        raise DataError(f"{where}: objects of shape {tuple(split.objects.shape)} for images {tuple(images.shape)}")
    counted = targets[targets != IGNORE]
    if counted.numel() == 0:
        raise DataError(f"{where}: no target counts")
    low, high = int(counted.min()), int(counted.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"{where}: a label {low if low < 0 else high}; labels of {classes} classes are 0 to {classes - 1}"
        )


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel, a chunk at a time in float64."""
    shape, count = (1, -1, 1, 1), images.numel() / images.size(1)
    zero = images.new_zeros(images.size(1), dtype=torch.float64)
    mean = sum((part.sum((0, 2, 3), dtype=torch.float64) for part in images.split(CHUNK)), zero) / count
    square = sum(((p.double() - mean.view(shape)).square_().sum((0, 2, 3)) for p in images.split(CHUNK)), zero)
    return mean.float(), (square / count).float()


def divide(split: Split, first: float, seed: int, purpose: Purpose = Purpose.SPLIT) -> tuple[Split, Split]:
    """Random division into ``first`` (a fraction) and the rest, by seed; each keeps the order of the whole.

    >>> samples = Split(torch.zeros(10, 1, 2, 2), torch.arange(10))
    >>> [len(part) for part in divide(samples, 0.9, seed=0)]
    [9, 1]
    """
    count = round(first * len(split))
    if not 0 < count < len(split):
        raise DataError(f"{len(split)} samples cannot be divided {first:.0%} to {1 - first:.0%}: more are needed")
    order = stream.permutation(seed, purpose, 0, len(split))
    return split[order[:count].sort().values], split[order[count:].sort().values]
