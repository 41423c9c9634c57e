"""Metrics under noise and attack."""

from __future__ import annotations

from collections.abc import Sequence

from ...summary import Summary, judged
from ..chart import Book, Chart, Line
from ..figure import figure, grid, left_out, note, section, switch
from ..markup import Html
from ..numbers import Axis, finite, linear, logarithmic, number

LEAD = "What is left when the images are disturbed, by Gaussian noise and by the gradient-sign attack."
KINDS = {
    "noise": ("Gaussian noise", "standard deviation of the noise"),
    "attack": ("Gradient-sign attack", "size of the attack"),
}
METRICS = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}


def robustness(runs: Sequence[Summary], book: Book) -> Html:
    """The section."""
    measured = [run for run in runs if run.robustness]
    if not measured:
        return section("robustness", "Robustness", LEAD, note("No run was measured under noise or attack."))
    panels = []
    for metric, label in METRICS.items():
        figures = [
            figure(book, _chart(runs, kind, metric), f"{label[0].upper()}{label[1:]} on disturbed images.")
            for kind in KINDS
            if any((run.robustness or {}).get(kind) for run in runs)
        ]
        panels.append((metric, label, grid(*figures, class_="grid pair")))
    missing = [run.name for run in runs if not run.robustness]
    counts = {run.robustness.get("count") for run in measured if run.robustness}
    lead = (
        f"{LEAD} On {counts.pop():,} {judged(measured)} images, in a single pass."
        if len(counts) == 1 and None not in counts
        else LEAD
    )
    content = switch("robustness", "Metric", panels, "accuracy")
    return section("robustness", "Robustness", lead, content, left_out(missing, "not measured"))


def _chart(runs: Sequence[Summary], kind: str, metric: str) -> Chart:
    lines = [line for index, run in enumerate(runs) if (line := _line(index, run, kind, metric)) is not None]
    slots = sorted({x for line in lines for x in line.x})
    title, label = KINDS[kind]
    across = linear(label, slots, low=min(slots, default=0.0), high=max(slots, default=1.0))
    reach = 1e-3 * (across.high - across.low)
    return Chart(f"{kind}-{metric}", title, across, _axis(lines, metric), lines, slots, reach, "strength")


def _line(index: int, run: Summary, kind: str, metric: str) -> Line | None:
    records = (run.robustness or {}).get(kind) or []
    points = [
        (x, number(record.get(metric))) for record in records if (x := number(record.get("strength"))) is not None
    ]
    points.sort(key=lambda point: point[0])
    return Line(index, [x for x, _ in points], [y for _, y in points]) if points else None


def _axis(lines: Sequence[Line], metric: str) -> Axis:
    values = finite(value for line in lines for value in line.y)
    if metric == "nll":
        return logarithmic("NLL", values)
    percent = "percent" if metric == "accuracy" else "number"
    return linear(METRICS[metric], values, percent, low=0.0, high=1.0 if metric == "accuracy" else None)
