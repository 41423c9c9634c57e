"""Microscopy of the Cell Tracking Challenge: every pixel is cell or background."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import DataError
from .augment import Augment
from .base import Data, Split, divide, make_data
from .download import file_sha256
from .image import read, to_tensor
from .reduced import averaged, most_frequent

CLASSES = ("background", "cell")
MASK_FOLDERS = {"expert": ("GT",), "auto": ("ST",), "expert+auto": ("GT", "ST")}
"""Suffix of the folders of masks; the first one that has a mask of the frame wins."""

SAMPLE_FORMAT, SIGNED = 339, 2
"""Tag of a TIFF file, and its value for integers with a sign."""

DEFORM, SPACING = 8.0, 64
"""Of whole frames, in pixels: std of the displacement, and distance of the points at which it is drawn."""

GREY = (0.0, 255.0)
"""Black and white, also where pixels were averaged."""

MOSTLY_UNANNOTATED = {"2f3fe9b33e4872b79fcfa3b1e4ea7fd7d541dce22b2bfe7253b52fe1d499f705"}
"""SHA-256 of the expert masks in which most cells are missing: frame 67 of sequence 01 of DIC-C2DH-HeLa."""


def cells(
    directory: str | Path,
    split_seed: int = 0,
    masks: Literal["expert", "expert+auto", "auto"] = "expert",
    split: Literal["random", "01-02"] = "random",
    exclude: Collection[tuple[str, int]] | None = None,
    reduce: int = 1,
) -> Data:
    """Annotated frames ``D/01/t002.tif`` with their masks ``D/01_GT/SEG/man_seg002.tif``; other frames are left out.

    70/30 into training and validation by seed. Where experts are asked for, their masks alone are validated on:
    automatic ones are for training, and the split of the others is the same with and without them. There is no test
    set, in the paper neither: ``test`` is ``val``, and what is chosen by the validation samples is not to be reported
    as a test result. Mirrored both ways and smoothly deformed in training. Where no mask has more than one
    number, cells are not told apart: there are no objects to measure SEG by.

    Arguments:
        directory: the folder ``D`` of a data set, with its sequences ``01``, ``02``, ...
        split_seed: decides which frames are for validation.
        masks: ``"expert"`` (``01_GT``), ``"auto"`` (``01_ST``), or ``"expert+auto"``: for training, an automatic mask
            where there is none by an expert.
        split: ``"random"``, or ``"01-02"``: train on sequence 01, validate and test on 02.
        exclude: expert masks that are not used, as (sequence, frame); with ``"expert+auto"`` the automatic ones take
            their place. None: those in which most cells are known to be missing.
        reduce: so many pixels each way are made one, for machines that are too slow for whole frames: frames are
            averaged, and a pixel is cell where more than half of those were, of the cell that most of them belong to
            (of equally many the one with the smallest number). The deformation shrinks along with them. Cells that
            stood one or two pixels apart touch then, so that SEG is lower, whatever is predicted.
    """
    if isinstance(reduce, bool) or not isinstance(reduce, int) or reduce < 1:
        raise DataError(f"reduce={reduce!r}: must be a whole number of at least 1; 1 leaves the frames as they are")
    if masks not in MASK_FOLDERS:
        raise DataError(f"masks {masks!r}: choose {', '.join(MASK_FOLDERS)}")
    if split not in ("random", "01-02"):
        raise DataError(f"split {split!r}: choose random or 01-02")
    root = Path(directory)
    frames = [frame for sequence in _sequences(root) for frame in _frames(root, sequence, MASK_FOLDERS[masks], exclude)]
    if split == "random":
        train, val = _random(root, frames, split_seed, reduce)
    else:
        first, second = _of(root, frames, "01"), _judged(root, _of(root, frames, "02"), 1)
        whole = _read([*first, *second], reduce)
        train, val = whole[: len(first)], whole[len(first) :]
    augment = Augment(hflip=True, vflip=True, deform=DEFORM / reduce, spacing=max(1, SPACING // reduce))
    data = make_data("cells", train, val, val, CLASSES, augment)
    used = {frame.sequence for frame in frames} if split == "random" else {"01", "02"}
    there = sum(len(_numbered(root / sequence, "t")) for sequence in used)
    return dataclasses.replace(data, unused=there - len(train) - len(val), span=GREY)


class _Frame(NamedTuple):
    """``added``: of an automatic mask that takes the place of an expert's, for training only."""

    sequence: str
    image: Path
    mask: Path
    added: bool


def _sequences(root: Path) -> list[str]:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the folder of a data set of the Cell Tracking Challenge")
    found = sorted(path.name for path in root.iterdir() if path.is_dir() and re.fullmatch(r"\d\d", path.name))
    if not found:
        raise DataError(f"{root}: no sequence folders 01, 02; give the folder that holds them, such as DIC-C2DH-HeLa")
    return found


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    """TIFF files of a folder by their number; files of another kind must not be named like them."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.startswith("."):
            continue
        if path.suffix.lower() not in (".tif", ".tiff"):
            if re.match(prefix + r"_?\d", path.name, re.IGNORECASE):
                raise DataError(f"{path}: not a TIFF file like {prefix}002.tif; convert, rename or remove it")
            continue
        number = re.fullmatch(prefix + r"(\d+)", path.stem)
        if number is None:
            raise DataError(f"{path}: expected a name like {prefix}002.tif; rename or remove it")
        if int(number[1]) in found:
            raise DataError(f"{path}: {found[int(number[1])].name} is there too; remove one of them")
        found[int(number[1])] = path
    return found


def _is_excluded(mask: Path, sequence: str, number: int, exclude: Collection[tuple[str, int]] | None) -> bool:
    return file_sha256(mask) in MOSTLY_UNANNOTATED if exclude is None else (sequence, number) in exclude


def _frames(
    root: Path, sequence: str, suffixes: tuple[str, ...], exclude: Collection[tuple[str, int]] | None
) -> list[_Frame]:
    """Frames of a sequence that have a mask, in order."""
    images = _numbered(root / sequence, "t")
    if not images:
        raise DataError(f"{root / sequence}: no frames like t002.tif in this sequence")
    chosen: dict[int, Path] = {}
    added: set[int] = set()
    folders = [root / f"{sequence}_{suffix}" / "SEG" for suffix in suffixes]
    if not any(folder.is_dir() for folder in folders):
        raise DataError(f"{folders[0]}: no such folder of masks; add it, or choose another kind of masks")
    for suffix, folder in zip(suffixes, folders, strict=True):
        for number, mask in (_numbered(folder, "man_seg") if folder.is_dir() else {}).items():
            if number not in images:
                raise DataError(f"{mask}: a mask without its frame {root / sequence / f't{number:03d}.tif'}")
            if number in chosen or (suffix == "GT" and _is_excluded(mask, sequence, number, exclude)):
                continue
            chosen[number] = mask
            if suffix != suffixes[0]:
                added.add(number)
    if suffixes[-1] == "ST":
        _require_all(root / sequence, images, chosen, folders[-1])
    if not chosen:
        raise DataError(f"{folders[0]}: no masks like man_seg002.tif for the frames of {root / sequence}")
    return [_Frame(sequence, images[number], chosen[number], number in added) for number in sorted(chosen)]


def _require_all(sequence: Path, images: dict[int, Path], chosen: dict[int, Path], folder: Path) -> None:
    """Programs annotate every frame: one without a mask is a file that was lost."""
    lost = next((number for number in images if number not in chosen), None)
    if chosen and lost is not None:
        mask = folder / f"man_seg{images[lost].stem.removeprefix('t')}.tif"
        raise DataError(f"{mask}: no such mask of {images[lost]}; add it, remove the frame, or choose masks 'expert'")


def _random(root: Path, frames: list[_Frame], seed: int, reduce: int) -> tuple[Split, Split]:
    judged, added = _judged(root, frames, 2), [frame for frame in frames if frame.added]
    whole = _read([*judged, *added], reduce)
    train, val = divide(whole[: len(judged)], 0.7, seed)
    return _joined(train, whole[len(judged) :]), val


def _judged(root: Path, frames: list[_Frame], least: int) -> list[_Frame]:
    """Frames that may be validated on."""
    found = [frame for frame in frames if not frame.added]
    if len(found) < least:
        count, are = len(found), "at least 2 are needed for training and" if least > 1 else "some are needed for"
        by = " by an expert" if len(found) < len(frames) else ""
        raise DataError(f"{root}: {count} annotated frame{'' if count == 1 else 's'}{by}; {are} validation")
    return found


def _joined(first: Split, second: Split) -> Split:
    both = None if first.objects is None or second.objects is None else torch.cat([first.objects, second.objects])
    return Split(torch.cat([first.images, second.images]), torch.cat([first.targets, second.targets]), both)


def _of(root: Path, frames: list[_Frame], sequence: str) -> list[_Frame]:
    found = [frame for frame in frames if frame.sequence == sequence]
    if not found:
        raise DataError(f"{root / sequence}: no such sequence; choose the random split")
    return found


def _read(frames: list[_Frame], reduce: int) -> Split:
    images = [_image(frame.image) for frame in frames]
    for frame, image in zip(frames, images, strict=True):
        _check_size(frame.image, image, images[0], frames[0].image)
    objects = []
    for frame, image in zip(frames, images, strict=True):
        mask = _mask(frame.mask)
        _check_size(frame.mask, mask, image, frame.image)
        objects.append(mask)
    _check_divides(frames[0].image, images[0], reduce)
    numbered = any(len(mask[mask > 0].unique()) > 1 for mask in objects)
    numbers = most_frequent(torch.stack(objects), reduce)
    return Split(averaged(torch.stack(images), reduce), (numbers > 0).long(), numbers if numbered else None)


def _image(path: Path) -> Tensor:
    """uint8 ``(1, H, W)``."""
    image = read(path, ("TIFF",))
    if image.mode != "L":
        raise DataError(f"{path}: 8-bit greyscale is needed, this is of mode {image.mode}; convert it")
    if getattr(image, "tag_v2", {}).get(SAMPLE_FORMAT) in (SIGNED, (SIGNED,)):
        raise DataError(f"{path}: its values have signs (-128 to 127), 0 to 255 is needed; convert it")
    return to_tensor(image)


def _mask(path: Path) -> Tensor:
    """int32 ``(H, W)``: the number of the cell at each pixel, 0 where there is none."""
    image = read(path, ("TIFF",))
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise DataError(
            f"{path}: a mask holds the number of a cell at each pixel, this is of mode {image.mode}; convert it to "
            "grey values"
        )
    if image.mode == "P":  # colours are for the eye, the numbers are what they stand for
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).int().view(image.height, image.width)
    numbers = torch.frombuffer(bytearray(image.convert("I").tobytes()), dtype=torch.int32)
    if numbers.numel() and numbers.min() < 0:
        raise DataError(f"{path}: a mask with the number {int(numbers.min())}; 0 is background, cells count from 1")
    return numbers.view(image.height, image.width)


def _check_size(path: Path, pixels: Tensor, reference: Tensor, of: Path) -> None:
    (height, width), (expected_height, expected_width) = pixels.shape[-2:], reference.shape[-2:]
    if (height, width) != (expected_height, expected_width):
        raise DataError(
            f"{path}: {height} x {width} (height x width), but {of} has {expected_height} x {expected_width}; "
            "all frames and masks need one size"
        )


def _check_divides(path: Path, image: Tensor, reduce: int) -> None:
    height, width = image.shape[-2:]
    if height % reduce or width % reduce:
        raise DataError(f"{path}: {height} x {width} cannot be reduced by {reduce}; choose a divisor of both")
