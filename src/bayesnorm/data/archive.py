"""Extraction of known files from a tar archive: what is not expected is refused, all or nothing is written."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from .._files import sync_folder
from ..errors import DataError

BLOCK = 1 << 20


@dataclass(frozen=True)
class Member:
    """What a file of the archive has to be.

    Arguments:
        size: in bytes.
        sha256: in hexadecimal.
    """

    size: int
    sha256: str


def extract(
    archive: Path, top: str, folder: Path, members: Mapping[str, Member], ignored: Collection[str] = ()
) -> None:
    """Write the entries ``TOP/NAME`` of a gzipped tar archive to ``FOLDER/NAME``, once all of them are found right.

    They are written to a temporary folder beside ``folder`` first. If ``folder`` is not there it appears as a whole;
    else its files of these names are replaced one by one. Paths of the archive are compared, never written to.

    Arguments:
        archive: the file.
        top: the one folder in the archive.
        folder: where the files go.
        members: what is extracted, by name.
        ignored: names of regular files that may also be in the archive.
    """
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        made = temporary / "whole"
        made.mkdir()
        _unpack(archive, top, made, members, ignored)
        _install(made, folder)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive}: not a readable archive ({error}); delete it and download it again") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot extract {archive} to {folder}: {reason}; nothing half-written is left") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _unpack(archive: Path, top: str, made: Path, members: Mapping[str, Member], ignored: Collection[str]) -> None:
    missing = {f"{top}/{name}": name for name in members}
    passed_over = {f"{top}/{name}" for name in ignored}
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            if entry.isreg() and entry.name in missing:
                name = missing.pop(entry.name)
                _write(archive, tar, entry, made / name, members[name])
            elif not (entry.isreg() and entry.name in passed_over) and not (entry.isdir() and entry.name == top):
                raise DataError(f"{archive}: unexpected entry {entry.name!r}; another archive, nothing was extracted")
    if missing:
        raise DataError(f"{archive}: {', '.join(missing)} missing; another archive, nothing was extracted")


def _write(archive: Path, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path, member: Member) -> None:
    if entry.size != member.size:
        raise DataError(
            f"{archive}: {entry.name} has {entry.size:,} bytes, expected {member.size:,}; nothing was extracted"
        )
    source = tar.extractfile(entry)
    assert source is not None, "a regular file can be read"
    digest = hashlib.sha256()
    with source, path.open("xb") as file:
        while block := source.read(BLOCK):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != member.sha256:
        raise DataError(
            f"{archive}: SHA-256 of {entry.name} is {digest.hexdigest()}, expected {member.sha256}; "
            "nothing was extracted"
        )


def _install(made: Path, folder: Path) -> None:
    sync_folder(made)
    try:
        os.replace(made, folder)
    except OSError:
        if not folder.is_dir():
            raise
        for path in sorted(made.iterdir()):
            os.replace(path, folder / path.name)
        sync_folder(folder)
    sync_folder(folder.parent)
