"""Files that are complete or absent, and JSON that shows damage."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from .. import _files
from .._files import sealed as sealed
from .._files import sha256 as sha256
from .._files import sync_folder
from ..errors import RunError

TEMPORARY = ".tmp"


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also when the machine loses power.

    Temporary file in the same folder, flush, fsync, ``os.replace``, fsync of the folder.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path} could not be written ({error.strerror}): make room or choose another --out, then repeat the "
            "command with --resume; what was saved before is intact"
        ) from error


def sweep(folder: Path) -> None:
    """Remove what a killed writer left."""
    for leftover in folder.glob(f".*{TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def unsealed(content: bytes, name: str | Path) -> dict[str, Any]:
    """The document, if not one byte of it has changed."""
    document = _files.unsealed(content)
    if document is None:
        raise DamagedError(f"{name} is damaged: its content does not match its checksum")
    return document


def read_sealed(path: Path) -> dict[str, Any]:
    """A sealed document from disk."""
    return unsealed(path.read_bytes(), path)


class DamagedError(RunError):
    """A file that is not what was written."""
