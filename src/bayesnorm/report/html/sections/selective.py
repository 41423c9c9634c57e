"""Error against coverage: what is gained by leaving out what the network is unsure of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import ways
from ...summary import Summary
from ..chart import Book, Chart, Line, thinned
from ..figure import figure, grid, note, switch
from ..markup import Html
from ..numbers import finite, linear, number
from .by_way import by_way

LEAD = (
    "The error among the images that are kept, when the most uncertain ones are left out. A curve that falls fast to "
    "the left knows its mistakes."
)
SCORES = {"entropy": "by entropy", "max_prob": "by highest probability"}
POINTS = 200


def selective(runs: Sequence[Summary], book: Book) -> Html:
    """The section."""
    heading = ("coverage", "Error and coverage", LEAD)
    return by_way(runs, "coverage", heading, lambda found, way: _panel(found, way, book))


def _panel(found: dict[int, dict[str, Any]], way: str, book: Book) -> Html:
    used = {run: name for run, curves in found.items() if (name := ways.of_run(curves, way)) is not None}
    scores = [score for score in SCORES if any(score in found[run][name] for run, name in used.items())]
    panels = []
    for score in scores:
        lines = [
            _line(run, found[run][name][score], ways.label(name) if name != way else "")
            for run, name in used.items()
            if score in found[run][name]
        ]
        panels.append((score, SCORES[score], _figures(way, score, lines, book)))
    if not panels:
        return note("No curve for this way of predicting.")
    return switch(f"score/{ways.key(way)}", "Uncertainty measured", panels, scores[0])


def _line(run: int, curve: dict[str, Any], text: str) -> Line:
    points = [
        (x, number(y)) for c, y in zip(curve["coverage"], curve["risk"], strict=True) if (x := number(c)) is not None
    ]
    points.sort(key=lambda point: point[0])
    kept = [points[index] for index in thinned(len(points), POINTS)]
    return Line(run, [x for x, _ in kept], [y for _, y in kept], text)


def _figures(way: str, score: str, lines: Sequence[Line], book: Book) -> Html:
    slots = [index / 50 for index in range(1, 51)]
    risks = finite(value for line in lines for value in line.y)
    whole = Chart(
        f"coverage-{ways.key(way)}-{score}", "Error by coverage", linear("coverage", [], "percent", 0.0, 1.0),
        linear("error", risks, "percent", low=0.0), lines, slots, 0.02, "coverage",
    )  # fmt: skip
    near = [_above(line, 0.7) for line in lines]
    risks = finite(value for line in near for value in line.y)
    top = Chart(
        f"coverage-top-{ways.key(way)}-{score}", "The last 30 %", linear("coverage", [], "percent", 0.7, 1.0),
        linear("error", risks, "percent", low=0.0), near, [0.7 + index / 100 for index in range(31)], 0.01, "coverage",
    )  # fmt: skip
    caption = f"Images are left out {SCORES[score]}."
    return grid(figure(book, whole, caption), figure(book, top, "The same curves, enlarged."), class_="grid pair")


def _above(line: Line, least: float) -> Line:
    start = next((index for index, x in enumerate(line.x) if x >= least), len(line.x))
    return Line(line.run, line.x[start:], line.y[start:], line.note)
