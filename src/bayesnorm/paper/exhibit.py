"""One figure or table of the paper: what it needs, how it is measured and drawn, what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .lab import Lab
from .preset import Preset
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measured = dict[str, Any]
"""JSON: ``numbers`` to compare with those of the paper, and what else is drawn."""


@dataclass(frozen=True)
class Exhibit:
    """A file of ``paper`` makes one.

    Arguments:
        id: on the command line.
        title: what it shows.
        claim: what the paper concludes from it.
        paper: the printed numbers, or words, under the names that ``measure`` gives its numbers.
        wanted: runs that it needs.
        measure: looks at the finished runs; gives ``{"numbers": {...}, ...}``.
        draw: a figure of what was measured, and of nothing else.
        cells: looks at the cell data although it wants no run on it.
        also: runs that are shown where they are there; one that diverges is left out.
        more: what else is written into ``ID.json``.
        partial: a run that diverged is shown as far as it got, and named in ``ID.json``; else there is no figure then.
    """

    id: str
    title: str
    claim: str
    paper: dict[str, Any]
    wanted: Callable[[Preset], Sequence[Wanted]]
    measure: Callable[[Lab], Measured]
    draw: Callable[[Measured], Figure]
    cells: bool = False
    also: Callable[[Preset], Sequence[Wanted]] = lambda preset: []
    more: Callable[[Lab], dict[str, Any]] = lambda lab: {}
    partial: bool = False
