"""Files that are complete or absent, and JSON that shows damage."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

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


def sha256(content: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(content).hexdigest()


def sealed(document: dict[str, Any]) -> bytes:
    """JSON of the document with its own digest in it.

    >>> unsealed(sealed({"step": 3}), "x.json")
    {'step': 3}
    """
    body = json.dumps(document, allow_nan=False)
    whole = {**document, "sha256": sha256(body.encode())}
    return (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode()


def unsealed(content: bytes, name: str | Path) -> dict[str, Any]:
    """The document, if not one byte of it has changed."""
    try:
        whole = json.loads(content)
        document = {key: value for key, value in whole.items() if key != "sha256"}
        intact = sealed(document) == content
    except (ValueError, AttributeError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise DamagedError(f"{name} is damaged: its content does not match its checksum")
    return document


def read_sealed(path: Path) -> dict[str, Any]:
    """A sealed document from disk."""
    return unsealed(path.read_bytes(), path)


class DamagedError(RunError):
    """A file that is not what was written."""
