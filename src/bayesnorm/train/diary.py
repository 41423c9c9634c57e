"""When a run was started, saved and stopped, and how long that took: what nothing of its result depends on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from .lines import append, readable


class Diary:
    """Lines with the time. They may be damaged, or gone.

    Arguments:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, event: str, **values: Any) -> None:
        """Add a line."""
        append(self.path, {"event": event, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **values})

    def seconds(self) -> float:
        """Time that the run has taken so far, of a device that it had with others its share."""
        found = 0.0
        for event in readable(self.path):
            with contextlib.suppress(ValueError, TypeError):
                found += float(event.get("seconds", 0.0))
        return found

    def saved_at(self) -> int:
        """The last step that was saved since the run began, or 1 of a stop that does not say which; 0: none."""
        found = 0
        for event in readable(self.path):
            kind, step = event.get("event"), event.get("step")
            if kind == "stop" and step is None:  # of a search, or as earlier versions had it
                found = max(found, 1)
            elif kind in ("start", "save", "stop", "finish") and isinstance(step, int):  # of a divergence it was not
                found = step  # 0 where it begins, perhaps anew
        return found
