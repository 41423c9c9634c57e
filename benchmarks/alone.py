"""Several calls at once: all build and compile at the same time, and are timed one after the other."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Alone:
    """A lock on a file that calls share while they build and hold alone while they measure.

    Arguments:
        path: of the file; None, where there is one call only.

    A call that wants to measure waits until no other builds or measures.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.file = None if path is None else path.open("w")

    def __enter__(self) -> Alone:
        self._lock(fcntl.LOCK_SH)
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.file.close()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Alone inside; others may come before this call builds again."""
        self._lock(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._lock(fcntl.LOCK_SH)

    def _lock(self, kind: int) -> None:
        if self.file is not None:
            fcntl.flock(self.file, fcntl.LOCK_UN)
            fcntl.flock(self.file, kind)
