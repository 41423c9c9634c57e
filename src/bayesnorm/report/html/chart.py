"""Line charts as data: what is drawn, what hovering reads, and what the table beside it says."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .numbers import Axis, rounded

POINTS = 300
"""Of one curve; more cannot be told apart on a screen."""


@dataclass(frozen=True)
class Line:
    """A curve of one run.

    Arguments:
        run: its number.
        x: increasing.
        y: as many; None leaves a gap.
        note: what sets it apart from other curves of the run.
        dashed: how it is drawn.
        counts: on how many samples each point rests, where that is known.
    """

    run: int
    x: Sequence[float]
    y: Sequence[float | None]
    note: str = ""
    dashed: bool = False
    counts: Sequence[int] = ()

    def at(self, x: float, reach: float) -> int | None:
        """Index of the point nearest to x, None if it is farther away than ``reach`` or a gap."""
        if not self.x:
            return None
        right = min(bisect_left(self.x, x), len(self.x) - 1)
        left = max(0, right - 1)
        index = left if x - self.x[left] < self.x[right] - x else right
        return index if abs(self.x[index] - x) <= reach and self.y[index] is not None else None


@dataclass(frozen=True)
class Chart:
    """A line chart.

    Arguments:
        id: of its element, unique on the page.
        title: what it shows, in a few words.
        x, y: its axes.
        lines: its curves.
        slots: where the cursor can stand, increasing.
        reach: how far from the cursor a curve's point may be to be read there.
        at: what a slot is called, "epoch".
        guide: a curve of no run, as (x, y): the diagonal of a reliability diagram.
        square: as high as it is wide.
    """

    id: str
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    slots: Sequence[float]
    reach: float
    at: str
    guide: Sequence[tuple[float, float]] = ()
    square: bool = False

    @property
    def empty(self) -> bool:
        """Whether no curve has a point that can be drawn."""
        return not any(self.y.drawable(value) for line in self.lines for value in line.y)


@dataclass
class Book:
    """What the page's script reads: the numbers of every chart, collected while the sections are made."""

    names: Sequence[str]
    charts: dict[str, Any] = field(default_factory=dict)

    def add(self, chart: Chart, frame: tuple[float, float, float, float]) -> None:
        """Enter a chart that is drawn in a frame (left, top, right, bottom)."""
        xs: list[list[float | None]] = []
        lines = []
        for line in chart.lines:
            x = [rounded(value) for value in line.x]
            if x not in xs:
                xs.append(x)
            entry: dict[str, Any] = {"run": line.run, "x": xs.index(x), "y": [rounded(value) for value in line.y]}
            if line.note:
                entry["note"] = line.note
            if line.counts:
                entry["counts"] = list(line.counts)
            lines.append(entry)
        self.charts[chart.id] = {
            "at": chart.at,
            "frame": frame,
            "x": _axis(chart.x),
            "y": _axis(chart.y),
            "slots": [rounded(value) for value in chart.slots],
            "reach": chart.reach,
            "xs": xs,
            "lines": lines,
        }


def _axis(axis: Axis) -> dict[str, Any]:
    return {"low": axis.low, "high": axis.high, "log": axis.log, "kind": axis.kind}


def thinned(count: int, limit: int = POINTS) -> list[int]:
    """At most ``limit`` indices of ``count``, evenly spread, the first and the last among them.

    >>> thinned(10, 4)
    [0, 3, 6, 9]
    """
    if count <= limit:
        return list(range(count))
    return [round(index * (count - 1) / (limit - 1)) for index in range(limit)]
