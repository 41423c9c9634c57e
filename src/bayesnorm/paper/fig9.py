"""Figure 9: the methods on the cell data. Trains nine of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..report.drawing import legend, legend_rows, look_of, new_figure, styled
from ..train.methods import NORMS
from .curves import curve_of, final, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

METHODS = (
    "none",
    *("batch", "batch+projection"),
    *(f"{norm}{more}" for norm in ("weight", "analytic") for more in ("", "+projection", "+projection+bayes")),
)
STYLES = (":", (0, (4, 2)), "-")
"""Of a norm alone, with projection, and with projection and Bayesian scales."""


def measure(lab: Lab) -> Measured:
    """Validation loss and accuracy per pixel; those that diverged have a curve up to there, and no numbers."""
    runs = {method: Wanted(method, cells=True) for method in METHODS}
    curves = {method: curve_of(lab.history(run)) for method, run in runs.items()}
    ended = {method: curve for method, curve in curves.items() if lab.lost(runs[method]) is None}
    numbers: dict[str, Any] = {
        f"{method}, {what}": final(curve, name) if method in ended else None
        for method, curve in curves.items()
        for what, name in (("validation loss", "val_nll"), ("validation accuracy", "val_accuracy"))
    }
    losses = {method: loss for method, curve in ended.items() if (loss := final(curve, "val_nll")) is not None}
    numbers["best by validation loss"] = min(losses, key=losses.__getitem__, default=None)
    return {"numbers": numbers, "curves": curves}


def _lines(axes: Axes, curves: dict[str, Any], name: str) -> list[Line2D]:
    """A colour for each norm: nine of them could not be told apart."""
    drawn = lines(axes, curves, name)
    for method, line, shade in zip(curves, drawn, axes.collections, strict=True):
        norm, *parts = method.split("+")
        colour = look_of(NORMS.index(norm))["color"]
        line.set(color=colour, linestyle=STYLES[len(parts)])
        shade.set_facecolor(colour)
    return drawn


def draw(measured: Measured) -> Figure:
    """Left: validation loss, right: validation accuracy."""
    curves = measured["curves"]
    figure = new_figure(10.0, 4.0 + 0.28 * legend_rows(curves, 10.0))
    with styled():
        left, right = figure.subplots(1, 2)
        handles = _lines(left, curves, "val_nll")
        _lines(right, curves, "val_accuracy")
        finish(left, "validation loss")
        finish(right, "validation accuracy")
        legend(figure, handles)
    return figure


exhibit = Exhibit(
    "fig9",
    "Comparison of methods on the cell segmentation data",
    "Bayesian learning with analytic normalization gives a noticeable improvement.",
    {"best by validation loss": "analytic+projection+bayes"},
    lambda preset: [Wanted(method, cells=True) for method in METHODS],
    measure,
    draw,
    partial=True,
)
