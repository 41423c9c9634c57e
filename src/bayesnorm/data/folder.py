"""Images of your own, one folder per class."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError
from .augment import Augment
from .base import Data, Split, divide, make_data
from .image import check_depth, read, to_tensor
from .stream import Purpose

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}
"""How names of images end."""
SPLITS = ("train", "val", "test")
TEST_SEED = 0
"""The test set is the same for every split seed."""
FEWEST = 10
"""Images from which validation images can be set apart."""


def folder(directory: str | Path, split_seed: int = 0, image_size: tuple[int, int] | None = None) -> Data:
    """Images sorted into folders by class; classes and files in the order of their names.

    ``D/CLASS/*``: a fifth is for testing, the same for every seed. ``D/train/CLASS/*`` and ``D/test/CLASS/*``: as
    they are. What is for training goes 90/10 into training and validation by seed, unless there is ``D/val/CLASS/*``.
    Images have one channel if all files are grey, else three. Mirrored left and right, shifted by a sixteenth.

    Arguments:
        directory: the folder ``D``. Hidden files are passed over, and files directly in it that are no images.
        split_seed: decides which tenth is for validation.
        image_size: height and width to which images are resized (antialiased); None: all have the same size.
    """
    if image_size is not None and min(image_size) < 1:
        raise DataError(f"image size {image_size}: height and width must be at least 1")
    root = Path(directory)
    parts = _layout(root)
    classes = tuple(path.name for path in _class_folders(parts["train"]))
    if len(classes) < 2:
        raise DataError(f"{parts['train']}: one class folder, {classes[0]!r}; at least two are needed")
    train, val, test = _split(root, _read(parts, classes, image_size), split_seed)
    _check_classes(root, classes, train, test)
    shift = max(1, min(train.images.shape[2:]) // 16)
    return make_data(root.resolve().name or "folder", train, val, test, classes, Augment(hflip=True, shift=shift))


@dataclass(frozen=True)
class _Sample:
    path: Path
    label: int


def _layout(root: Path) -> dict[str, Path]:
    """The folders that hold class folders, by the name of their split."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the folder that holds one folder of images per class")
    for entry in _visible(root):
        if entry.is_file() and entry.suffix.lower() in IMAGES and _folders(root):
            raise DataError(f"{entry}: an image beside the class folders; move it into that of its class, or remove it")
    train = root / "train"
    # A class may be called "train": its folder holds images, not folders.
    if not (train.is_dir() and _folders(train)):
        return {"train": root}
    if not (root / "test").is_dir():
        raise DataError(f"{root / 'test'} is missing beside {train}; add it, or put all class folders into {root}")
    for entry in _folders(root):
        if entry.name not in SPLITS:
            raise DataError(f"{entry}: beside {train} belong test and val, for validation; rename or remove it")
    return {name: root / name for name in SPLITS if (root / name).is_dir()}


def _visible(path: Path) -> list[Path]:
    try:
        found = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return sorted(found, key=lambda entry: entry.name)


def image_files(path: Path) -> list[Path]:
    """All files below a folder in the order of their names, but for hidden ones."""
    if not path.is_dir():
        raise DataError(f"{path}: no such folder")
    found = [[entry] if entry.is_file() else image_files(entry) for entry in _visible(path)]
    return [file for files in found for file in files]


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _visible(path) if entry.is_dir()]


def _class_folders(path: Path) -> list[Path]:
    found = _folders(path)
    if not found:
        raise DataError(f"{path}: no class folders; images belong in one folder per class, {path / 'CLASS' / 'a.png'}")
    return found


def _samples(path: Path, classes: tuple[str, ...]) -> list[_Sample]:
    samples = []
    for place in _class_folders(path):
        if place.name not in classes:
            raise DataError(f"{place}: class {place.name!r} is not among those for training ({', '.join(classes)})")
        files = _visible(place)
        if not files:
            raise DataError(f"{place}: an empty class folder; add images or remove it")
        for file in files:
            if not file.is_file():
                what = "a link that leads nowhere" if file.is_symlink() else "not a file"
                raise DataError(f"{file}: {what}; images lie directly in the folder of their class")
            samples.append(_Sample(file, classes.index(place.name)))
    return samples


def _read(parts: dict[str, Path], classes: tuple[str, ...], size: tuple[int, int] | None) -> dict[str, Split]:
    """Images of all splits, with the same number of channels."""
    samples = {name: _samples(path, classes) for name, path in parts.items()}
    first = samples["train"][0].path
    images: dict[str, list[Tensor]] = {name: [] for name in samples}
    for name, listed in samples.items():
        for sample in listed:
            pixels = pixels_of(sample.path, size)
            _check_size(sample.path, pixels, first, images["train"][0] if images["train"] else pixels)
            images[name].append(pixels)
    channels = max(pixels.size(0) for listed in images.values() for pixels in listed)
    return {
        name: Split(
            torch.stack([pixels.expand(channels, -1, -1) for pixels in images[name]]),
            torch.tensor([sample.label for sample in listed]),
        )
        for name, listed in samples.items()
    }


def pixels_of(path: Path, size: tuple[int, int] | None) -> Tensor:
    """An image file as uint8 ``(C, H, W)``, scaled to a size if one is given."""
    image = read(path, FORMATS)
    check_depth(path, image)
    return to_tensor(image, size)


def _check_size(path: Path, pixels: Tensor, first: Path, reference: Tensor) -> None:
    (height, width), (expected_height, expected_width) = pixels.shape[1:], reference.shape[1:]
    if (height, width) != (expected_height, expected_width):
        raise DataError(
            f"{path}: {height} x {width} (height x width), but {first.name} has {expected_height} x {expected_width}; "
            "give one size for all with --image-size"
        )


def _split(root: Path, read: dict[str, Split], seed: int) -> tuple[Split, Split, Split]:
    train = read["train"]
    if len(train) < FEWEST and "val" not in read:
        raise DataError(f"{root}: {len(train)} images for training and validation; at least {FEWEST} are needed")
    test = read.get("test")
    if test is None:
        train, test = divide(train, 0.8, TEST_SEED, Purpose.TEST_SPLIT)
    val = read.get("val")
    if val is None:
        train, val = divide(train, 0.9, seed)
    return train, val, test


def _check_classes(root: Path, classes: tuple[str, ...], train: Split, test: Split) -> None:
    """A class without an image for training cannot be learned; without one for testing nothing is said of it."""
    for name, split in (("training", train), ("testing", test)):
        there = set(split.targets.tolist())
        missing = [repr(of) for label, of in enumerate(classes) if label not in there]
        if not missing:
            continue
        few = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        message = f"{root}: no image for {name} of class {few}"
        if name == "training":
            raise DataError(
                f"{message}; add images, or put those for training into {root / 'train'} and the others into test"
            )
        warnings.warn(f"{message}: what is measured there tells nothing about it", stacklevel=3)
