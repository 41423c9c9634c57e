"""CIFAR-10 from its official binary distribution: 60,000 images of 3 x 32 x 32, no pickle anywhere."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import DataError
from .archive import Member, extract
from .augment import Augment
from .base import Data, Split, divide, make_data
from .download import Progress, download, file_sha256

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
"""Bytes of one sample: the label, then the image channel by channel."""

_FILES = MappingProxyType(
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }
)


@dataclass(frozen=True)
class Source:
    """Where the data comes from and what it has to be.

    Arguments:
        url: of the archive.
        sha256: of the archive.
        files: SHA-256 of each file by name; the last one is the test set.
        records: samples in each file.
        archive: name of the archive on disk.
        folder: name of the folder in the archive, and on disk.
        ignored: names of files in the archive that are not needed.
    """

    url: str = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    sha256: str = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    files: Mapping[str, str] = field(default_factory=lambda: _FILES)
    records: int = 10_000
    archive: str = "cifar-10-binary.tar.gz"
    folder: str = "cifar-10-batches-bin"
    ignored: tuple[str, ...] = ("batches.meta.txt", "readme.html")

    @property
    def size(self) -> int:
        """Bytes of each file."""
        return self.records * RECORD


OFFICIAL = Source()


class Checked(NamedTuple):
    """What ``verify`` found out about one file."""

    file: Path
    bytes: int
    ok: bool
    problem: str
    """What is wrong, in a few words; empty if nothing is."""


def cifar10(directory: str | Path, split_seed: int = 0, source: Source = OFFICIAL) -> Data:
    """50,000 images 90/10 into training and validation by seed, 10,000 for testing. Shifts of 2 pixels, mirrored.

    Every file is checked against its SHA-256 as it is read.

    Arguments:
        directory: ``cifar-10-batches-bin``, or the folder that holds it or the archive ``cifar-10-binary.tar.gz``,
            which is checked and extracted there.
        split_seed: decides which tenth is for validation.
        source: what the files have to be.
    """
    root, folder = _places(Path(directory), source)
    if not all((folder / name).exists() for name in source.files) and (root / source.archive).exists():
        _extract(root, folder, source)
    names = list(source.files)
    whole = _read(folder, names[:-1], source)
    train, val = divide(whole, 0.9, split_seed)
    del whole
    test = _read(folder, names[-1:], source)
    return make_data("cifar10", train, val, test, CLASSES, Augment(shift=2, hflip=True), augment_val=True)


def verify(directory: str | Path, source: Source = OFFICIAL) -> list[Checked]:
    """Check every file under ``directory`` without loading it; whatever is wrong is in the answer."""
    folder = _places(Path(directory), source)[1]
    return [_checked(folder / name, digest, source) for name, digest in source.files.items()]


def fetch(directory: str | Path, progress: Progress | None = None, source: Source = OFFICIAL) -> Path:
    """Make sure that the files are there and right: download and extract the archive unless they are.

    An archive that is there already is used if it is the official one. Files that are not right are replaced.

    Arguments:
        directory: as for ``cifar10``; it is made if need be.
        progress: called with the bytes downloaded and the bytes in all.
        source: what is downloaded.

    Returns:
        The folder with the files.
    """
    root, folder = _places(Path(directory), source)
    if all(checked.ok for checked in verify(directory, source)):
        return folder
    download(source.url, root / source.archive, source.sha256, progress)
    _extract(root, folder, source)
    return folder


def _places(directory: Path, source: Source) -> tuple[Path, Path]:
    """Folder of the archive, and of the files."""
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is a file; give the folder that holds {source.folder} or {source.archive}")
    if directory.name == source.folder:
        return directory.parent, directory
    if any((directory / name).exists() for name in source.files):
        return directory, directory
    return directory, directory / source.folder


def _extract(root: Path, folder: Path, source: Source) -> None:
    archive = root / source.archive
    found = _readable_sha256(archive)
    if found != source.sha256:
        problem = f"SHA-256 is {found}, expected {source.sha256}: damaged or another archive"
        raise DataError(f"{archive}: {problem}; {_command(root)} replaces it")
    members = {name: Member(source.size, digest) for name, digest in source.files.items()}
    extract(archive, source.folder, folder, members, source.ignored)


def _readable_sha256(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _checked(path: Path, digest: str, source: Source) -> Checked:
    if not path.is_file():
        return Checked(path, 0, False, "missing")
    size = path.stat().st_size
    try:
        problem = _wrong_size(size, source) or _wrong_digest(file_sha256(path), digest)
    except OSError as error:
        problem = f"unreadable, {error.strerror or error}"
    return Checked(path, size, not problem, problem)


def _wrong_size(size: int, source: Source) -> str:
    if size == source.size:
        return ""
    return f"{'truncated, ' if size < source.size else ''}{size:,} bytes instead of {source.size:,}"


def _wrong_digest(found: str, expected: str) -> str:
    return "" if found == expected else f"damaged, SHA-256 is {found}, expected {expected}"


def _read(folder: Path, names: list[str], source: Source) -> Split:
    """The samples of some files; one file at a time is in memory twice."""
    images = torch.empty(len(names) * source.records, *SHAPE, dtype=torch.uint8)
    targets = torch.empty(len(images), dtype=torch.int64)
    for index, name in enumerate(names):
        part = slice(index * source.records, (index + 1) * source.records)
        records = _records(folder / name, source.files[name], source)
        targets[part] = records[:, 0]
        images[part] = records[:, 1:].view(-1, *SHAPE)
    return Split(images, targets)


def _records(path: Path, digest: str, source: Source) -> Tensor:
    """Records of a file ``(N, 3073)`` uint8, after every check."""
    remedy = _command(path.parent.parent if path.parent.name == source.folder else path.parent)
    if not path.is_file():
        raise DataError(f"{path} is missing; {remedy} downloads it")
    problem = _wrong_size(path.stat().st_size, source)
    if not problem:
        # bytes would be read-only, which a tensor cannot be.
        content = bytearray(source.size)
        _fill(content, path)
        problem = _wrong_digest(hashlib.sha256(content).hexdigest(), digest)
    if problem:
        raise DataError(f"{path}: {problem}; {remedy} replaces it")
    records = torch.frombuffer(content, dtype=torch.uint8).view(-1, RECORD)
    wrong = (records[:, 0] >= len(CLASSES)).nonzero()
    if len(wrong):
        place = int(wrong[0])
        raise DataError(
            f"{path}: record {place} has label {int(records[place, 0])}; labels are 0 to 9; {remedy} replaces it"
        )
    return records


def _fill(content: bytearray, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.readinto(content)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _command(directory: Path) -> str:
    return f"`bayesnorm data cifar10 --dir {shlex.quote(str(directory))}`"
