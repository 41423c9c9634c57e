"""Values as colours: a strip per row, a key for all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .markup import Html, tag
from .numbers import Axis

STEPS = 40
APART = 0.13
"""Of the key's width: ticks that are closer would cover each other on a phone."""
VIRIDIS = (
    *((68, 1, 84), (72, 36, 117), (65, 68, 135), (53, 95, 141), (42, 120, 142), (33, 145, 140)),
    *((34, 168, 132), (68, 191, 112), (122, 209, 81), (189, 223, 38), (253, 231, 37)),
)
"""Even steps of brightness, for every kind of colour vision and on paper."""


def step(axis: Axis, value: float) -> int:
    """Which of the colours a value has."""
    return min(STEPS - 1, max(0, int(STEPS * axis.place(value))))


def colour(index: int) -> str:
    """A colour of the map.

    >>> colour(0), colour(STEPS - 1)
    ('#440154', '#fde725')
    """
    place = index / (STEPS - 1) * (len(VIRIDIS) - 1)
    left = min(int(place), len(VIRIDIS) - 2)
    pairs = zip(VIRIDIS[left], VIRIDIS[left + 1], strict=True)
    return "#" + "".join(f"{round(low + (place - left) * (high - low)):02x}" for low, high in pairs)


def strip(axis: Axis, values: Sequence[float]) -> Html:
    """Cells side by side; neighbours of the same colour are one rectangle."""
    cells, start = [], 0
    for index, group in groupby(step(axis, value) for value in values):
        width = len(list(group))
        cells.append(tag("rect", x=start, width=width, height=1, fill=colour(index)))
        start += width
    return _svg(cells, len(values), "strip")


def key(axis: Axis) -> Html:
    """What the colours mean."""
    bar = _svg([tag("rect", x=i, width=1, height=1, fill=colour(i)) for i in range(STEPS)], STEPS, "strip")
    kept: list[float] = []
    for tick in axis.ticks:
        if not kept or axis.place(tick) - axis.place(kept[-1]) > APART:
            kept.append(tick)
    ticks = [tag("span", axis.tick(tick), style=f"left:{100 * axis.place(tick):.1f}%") for tick in kept]
    return tag(
        "div", tag("span", axis.label), tag("div", bar, tag("div", ticks, class_="ticks"), class_="scale"), class_="key"
    )


def _svg(cells: Sequence[Html], width: int, class_: str) -> Html:
    box = f"0 0 {max(1, width)} 1"
    return tag("svg", cells, class_=class_, viewBox=box, preserveAspectRatio="none", aria_hidden="true")
