"""Reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import ways
from ...summary import Summary
from ..chart import Book, Chart, Line
from ..figure import figure, grid
from ..markup import Html
from ..numbers import linear, logarithmic, number
from .by_way import by_way

LEAD = (
    "How often the network is right when it says it is sure to a given degree. On the diagonal it is calibrated, "
    "below it is too sure of itself."
)


def calibration(runs: Sequence[Summary], book: Book) -> Html:
    """The section."""
    heading = ("calibration", "Calibration", LEAD)
    return by_way(runs, "reliability", heading, lambda found, way: _panel(found, way, book))


def _panel(found: dict[int, dict[str, Any]], way: str, book: Book) -> Html:
    lines, shares = [], []
    bins = 1
    for run, of_run in found.items():
        used = ways.of_run(of_run, way)
        if used is not None:
            text = ways.label(used) if used != way else ""
            bins = len(of_run[used]["count"])
            lines.append(_accuracies(run, of_run[used], text))
            shares.append(_shares(run, of_run[used], text))
    centres = [(index + 0.5) / bins for index in range(bins)]
    half = 0.5 / bins + 1e-6
    x = linear("confidence", [], "percent", 0.0, 1.0)
    share = logarithmic("share of images", [value for line in shares for value in line.y if value], "percent")
    right = linear("accuracy", [], "percent", 0.0, 1.0)
    key, at, corners = ways.key(way), "confidence", ((0.0, 0.0), (1.0, 1.0))
    diagram = Chart(f"reliability-{key}", "Reliability", x, right, lines, centres, half, at, corners, square=True)
    counts = Chart(f"confidence-{key}", "Confidence", x, share, shares, centres, half, at, square=True)
    return grid(
        figure(book, diagram, f"Accuracy by confidence, in {bins} bins."),
        figure(book, counts, "Share of the predictions in each bin, on a logarithmic axis."),
        class_="grid pair",
    )


def _accuracies(run: int, bins: dict[str, Any], text: str) -> Line:
    points = [
        (x, y, int(count))
        for count, confidence, accuracy in zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True)
        if (x := number(confidence)) is not None and (y := number(accuracy)) is not None
    ]
    return Line(run, [x for x, _, _ in points], [y for _, y, _ in points], text, counts=[n for _, _, n in points])


def _shares(run: int, bins: dict[str, Any], text: str) -> Line:
    counts = [int(count) for count in bins["count"]]
    centres = [(index + 0.5) / len(counts) for index in range(len(counts))]
    total = max(1, sum(counts))
    return Line(run, centres, [count / total if count else None for count in counts], text, counts=counts)
