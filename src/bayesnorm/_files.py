"""What writers and readers of files have in common."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(content: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(content).hexdigest()


def sealed(document: dict[str, Any]) -> bytes:
    """JSON of the document with its own digest in it.

    >>> unsealed(sealed({"step": 3}))
    {'step': 3}
    """
    body = json.dumps(document, allow_nan=False)
    whole = {**document, "sha256": sha256(body.encode())}
    return (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode()


def unsealed(content: bytes) -> dict[str, Any] | None:
    """The document, if not one byte of it has changed; else None."""
    try:
        whole = json.loads(content)
        document = {key: value for key, value in whole.items() if key != "sha256"}
        return document if sealed(document) == content else None
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
