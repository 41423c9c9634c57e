"""Files that grow by a line of JSON at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError
from .events import Record


def as_lines(records: Sequence[Record]) -> bytes:
    """Records as such a file has them."""
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()


def append(path: Path, values: dict[str, Any]) -> None:
    """Add a line, which is one of its own also where a kill tore the last."""
    try:
        with path.open("ab+") as file:
            file.seek(max(0, file.tell() - 1))
            torn = file.read() not in (b"", b"\n")
            file.write(b"\n" * torn + as_lines([values]))
    except OSError as error:
        raise RunError(
            f"{path} could not be written ({error.strerror}): make room, then repeat the command with --resume; "
            "what was saved before is intact"
        ) from error


def readable(path: Path) -> Iterator[dict[str, Any]]:
    """Its objects, without damaged lines; none where there is no file."""
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found
