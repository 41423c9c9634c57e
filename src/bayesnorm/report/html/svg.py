"""Line charts as SVG inside a page; colours, fonts and widths are the style sheet's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import looks
from .chart import Chart, Line
from .markup import Html, tag
from .numbers import Axis

WIDTH, HEIGHT = 400.0, 282.0
LEFT, TOP, RIGHT, BOTTOM = 50.0, 12.0, WIDTH - 12.0, 40.0
MARKS = 7
"""Markers on a long curve."""

Point = tuple[float, float]


def frame(chart: Chart) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the field in which curves are drawn."""
    return LEFT, TOP, RIGHT, _height(chart) - BOTTOM


def _height(chart: Chart) -> float:
    return WIDTH - 14.0 if chart.square else HEIGHT


def draw(chart: Chart, names: Sequence[str]) -> Html:
    """The chart as an element."""
    left, top, right, bottom = frame(chart)
    clip = f"{chart.id}-clip"
    return tag(
        "svg",
        tag("clipPath", tag("rect", x=left - 5, y=top - 5, width=right - left + 10, height=bottom - top + 9), id=clip),
        _across(chart),
        _up(chart),
        tag("path", d=_path([_segment(chart, chart.guide)]), class_="guide") if chart.guide else None,
        tag("g", [_curve(chart, line) for line in chart.lines], clip_path=f"url(#{clip})"),
        tag("text", "no data", x=(left + right) / 2, y=(top + bottom) / 2, class_="empty") if chart.empty else None,
        role="img",
        aria_label=described(chart, names),
        viewBox=f"0 0 {WIDTH:g} {_height(chart):g}",
    )


def described(chart: Chart, names: Sequence[str]) -> str:
    """A chart in a sentence."""
    if chart.empty:
        return f"{chart.title}: no data."
    runs = list(dict.fromkeys(names[line.run] for line in chart.lines))
    scale = " on a logarithmic axis" if chart.y.log else ""
    return f"Line chart: {chart.title}. {chart.y.label}{scale} against {chart.x.label}, for {', '.join(runs)}."


def _across(chart: Chart) -> Html:
    left, _, right, bottom = frame(chart)
    places = [(left + chart.x.place(value) * (right - left), chart.x.tick(value)) for value in chart.x.ticks]
    return tag(
        "g",
        tag("path", d=f"M{left:g},{bottom:g}H{right:g}", class_="axis"),
        tag("path", d="".join(f"M{x:.1f},{bottom:g}v4" for x, _ in places), class_="axis"),
        [tag("text", text, x=f"{x:.1f}", y=f"{bottom + 16:g}", class_="across") for x, text in places],
        tag("text", chart.x.label, x=(left + right) / 2, y=f"{bottom + 34:g}", class_="across name"),
        aria_hidden="true",
    )


def _up(chart: Chart) -> Html:
    left, top, right, bottom = frame(chart)
    places = [(bottom - chart.y.place(value) * (bottom - top), chart.y.tick(value)) for value in chart.y.ticks]
    return tag(
        "g",
        tag("path", d="".join(f"M{left:g},{y:.1f}H{right:g}" for y, _ in places), class_="grid"),
        [tag("text", text, x=f"{left - 7:g}", y=f"{y + 4:.1f}", class_="up") for y, text in places],
        aria_hidden="true",
    )


def _curve(chart: Chart, line: Line) -> Html:
    pieces = [_segment(chart, piece) for piece in _pieces(line, chart.y)]
    return tag(
        "g",
        tag("path", d=_path(pieces), class_="line dashed" if line.dashed else "line"),
        tag("path", d=looks.markers(line.run, _marked(pieces, line.run, line.dashed)), class_="mark"),
        class_=looks.colour(line.run),
        data_run=line.run,
    )


def _pieces(line: Line, axis: Axis) -> list[list[Point]]:
    """The stretches of a curve between its gaps."""
    found: list[list[Point]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is not None and axis.drawable(y):
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def _segment(chart: Chart, points: Iterable[Point]) -> list[Point]:
    left, top, right, bottom = frame(chart)
    return [
        (left + chart.x.place(x) * (right - left), bottom - min(8.0, max(-8.0, chart.y.place(y))) * (bottom - top))
        for x, y in points
    ]


def _path(pieces: Iterable[Sequence[Point]]) -> str:
    return "".join("M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in piece) for piece in pieces)


def _marked(pieces: list[list[Point]], run: int, dashed: bool) -> list[Point]:
    """Where a curve has markers: everywhere if it is short, else a few, for each run at other places."""
    points = [point for piece in pieces for point in piece]
    if len(points) <= 2 * MARKS:
        return points if not dashed or len(points) == 1 else []
    if dashed:
        return [piece[0] for piece in pieces if len(piece) == 1]
    apart = len(points) // MARKS
    return [*points[run * apart // looks.COLOURS % apart :: apart]]
