"""The learned noise sigma / s: a heat map over the channels of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import Any

from ....train.events import Record, measured
from ...summary import Summary
from .. import heat, looks
from ..chart import Book
from ..figure import folded, grid, note, section, table
from ..markup import Html, tag
from ..numbers import Axis, finite, linear, logarithmic, number, rounded, show

LABEL = "\N{GREEK SMALL LETTER SIGMA} / s"
LEAD = (
    f"The noise {LABEL} that Bayesian scales have learned. Each row is a layer, from input to output; its channels are "
    "sorted from the noisiest to the most certain. One colour means the same in all runs."
)

Layers = Mapping[str, Sequence[tuple[float, int]]]
"""For each layer the ratio and the number of each channel, the largest ratio first; -1 numbers the mean."""


def noise(runs: Sequence[Summary], book: Book) -> Html:
    """The section."""
    found = {index: layers for index, run in enumerate(runs) if (layers := channels(run))}
    if not found:
        return section("noise", "Learned noise", LEAD, note("None of the runs has learned its noise."))
    axis = _scale([value for layers in found.values() for row in layers.values() for value, _ in row])
    maps = [_map(runs[index].name, index, layers, axis, book) for index, layers in found.items()]
    return section("noise", "Learned noise", LEAD, heat.key(axis), grid(*maps, class_="grid pair"))


def channels(run: Summary) -> Layers:
    """The ratios of a run: of every channel if it was evaluated, else the means of its last epoch."""
    document = run.evaluation or {}
    if document.get("channels"):
        return {layer: _sorted(values) for layer, values in document["channels"].items() if finite(values)}
    last: Record = next(reversed(measured(run.history)), {})
    means = document.get("sigma_over_s") or last.get("sigma_over_s") or {}
    return {layer: [(value, -1)] for layer, mean in means.items() if (value := number(mean)) is not None}


def _sorted(values: Sequence[Any]) -> list[tuple[float, int]]:
    known = [(value, index) for index, entry in enumerate(values) if (value := number(entry)) is not None]
    return sorted(known, key=lambda pair: -pair[0])


def _scale(values: Sequence[float]) -> Axis:
    """Logarithmic where the values span more than a factor of four."""
    low, high = min(values), max(values)
    if low > 0 and high > 4 * low:
        return logarithmic(LABEL, values)
    return linear(LABEL, values)


def _map(name: str, run: int, layers: Layers, axis: Axis, book: Book) -> Html:
    key = f"noise-{run}"
    book.charts[key] = {
        "rows": [
            {"name": layer, "values": [rounded(v) for v, _ in row], "channels": [channel for _, channel in row]}
            for layer, row in layers.items()
        ]
    }
    rows = [_row(layer, row, axis) for layer, row in layers.items()]
    names = [tag("th", text, scope="col") for text in ("layer", "channels, sorted", "mean")]
    means = tag("table", tag("caption", f"{name}: mean {LABEL} of each layer", class_="sr"),
                tag("thead", tag("tr", names)), tag("tbody", rows), class_="heat")  # fmt: skip
    title = tag("figcaption", tag("strong", looks.who(run, name)))
    plot = tag("div", means, class_="plot", data_heat=key)
    return tag("figure", title, plot, _numbers(name, layers), id=key, data_run=run)


def _row(layer: str, row: Sequence[tuple[float, int]], axis: Axis) -> Html:
    values = [value for value, _ in row]
    return tag(
        "tr",
        tag("th", tag("span", layer, class_="layer", title=layer), scope="row"),
        tag("td", heat.strip(axis, values)),
        tag("td", show(rounded3(sum(values) / len(values))), class_="number"),
    )


def rounded3(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def _numbers(name: str, layers: Layers) -> Html | None:
    """Quartiles of each layer."""
    if all(len(row) == 1 for row in layers.values()):
        return None
    head = ["layer", "channels", "least", "lower quartile", "median", "upper quartile", "most"]
    rows = []
    for layer, row in layers.items():
        values = sorted(value for value, _ in row)
        middle = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        shown = [show(rounded3(value)) for value in (values[0], *middle, values[-1])]
        rows.append([layer, len(values), *shown])
    return folded("Numbers: quartiles", table(head, rows, f"{name}: {LABEL} over the channels of each layer"))
