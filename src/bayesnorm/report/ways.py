"""Ways of predicting: single pass, Monte Carlo, moments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_DRAWS = re.compile(r"mc(\d+)")


def label(way: str) -> str:
    """In words.

    >>> label("single"), label("mc30"), label("moments")
    ('single pass', 'MC 30', 'moments')
    """
    found = _DRAWS.fullmatch(way)
    return f"MC {found[1]}" if found else {"single": "single pass"}.get(way, way)


def key(way: str) -> str:
    """A part of an element's id.

    >>> key("mc30"), key("a b")
    ('mc30', 'a-20-b')
    """
    return re.sub(r"\W", lambda found: f"-{ord(found[0]):x}-", way)


def ordered(ways: Iterable[str]) -> list[str]:
    """Each once: the single pass, Monte Carlo by the number of draws, moments, others.

    >>> ordered(["moments", "mc30", "mc10", "single"])
    ['single', 'mc10', 'mc30', 'moments']
    """
    return sorted(dict.fromkeys(ways), key=_rank)


def _rank(way: str) -> tuple[int, int, str]:
    found = _DRAWS.fullmatch(way)
    return {"single": 0, "moments": 2}.get(way, 1 if found else 3), int(found[1]) if found else 0, way


def most(ways: Iterable[str]) -> str:
    """The one with the most draws, the first if none draws."""
    by_rank = ordered(ways)
    return next((way for way in reversed(by_rank) if _DRAWS.fullmatch(way)), by_rank[0])


def of_run(found: Mapping[str, Any], way: str) -> str | None:
    """What stands for a way in a run: itself, or the single pass of a network without a posterior."""
    if way in found:
        return way
    return None if any(name == "moments" or _DRAWS.fullmatch(name) for name in found) else "single"
