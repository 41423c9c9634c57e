"""Figure 9: the methods on the cell data. Trains five of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import curve_of, final, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("none", "batch", "weight+projection+bayes", "analytic+projection", "analytic+projection+bayes")


def measure(lab: Lab) -> Measured:
    """Validation loss and accuracy per pixel."""
    curves = {method: curve_of(lab.history(Wanted(method, cells=True))) for method in METHODS}
    numbers: dict[str, Any] = {
        f"{method}, {what}": final(curve, name)
        for method, curve in curves.items()
        for what, name in (("validation loss", "val_nll"), ("validation accuracy", "val_accuracy"))
    }
    losses = {method: loss for method, curve in curves.items() if (loss := final(curve, "val_nll")) is not None}
    numbers["best by validation loss"] = min(losses, key=losses.__getitem__, default=None)
    return {"numbers": numbers, "curves": curves}


def draw(measured: Measured) -> Figure:
    """Left: validation loss, right: validation accuracy."""
    curves = measured["curves"]
    figure = new_figure(10.0, 4.0 + 0.28 * legend_rows(curves, 10.0))
    with styled():
        left, right = figure.subplots(1, 2)
        handles = lines(left, curves, "val_nll")
        lines(right, curves, "val_accuracy")
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
)
