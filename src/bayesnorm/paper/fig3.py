"""Figure 3: keeping the weights on the unit sphere helps every normalization. Trains each with and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import curve_of, final, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NORMS = {"batch": "BN", "weight": "Weight Norm", "analytic": "Analytic Norm"}
WAYS = {"free": "", "projected": "+projection"}


def measure(lab: Lab) -> Measured:
    """Validation accuracy of every norm, and its final validation loss."""
    panels = {
        norm: {way: curve_of(lab.history(Wanted(norm + suffix))) for way, suffix in WAYS.items()} for norm in NORMS
    }
    numbers = {
        f"{norm}, {way}, {what}": final(curve, name)
        for norm, curves in panels.items()
        for way, curve in curves.items()
        for what, name in (("validation loss", "val_nll"), ("validation accuracy", "val_accuracy"))
    }
    return {"numbers": numbers, "panels": panels}


def draw(measured: Measured) -> Figure:
    """Validation accuracies, a panel per norm."""
    figure = new_figure(12.6, 3.9 + 0.28 * legend_rows(WAYS))
    handles = []
    with styled():
        for axes, (norm, curves) in zip(figure.subplots(1, 3), measured["panels"].items(), strict=True):
            handles = lines(axes, curves, "val_accuracy")
            finish(axes, "validation accuracy", NORMS[norm])
        legend(figure, handles)
    return figure


exhibit = Exhibit(
    "fig3",
    "Normalizations with and without projection onto the unit sphere",
    "Projection improves the validation accuracy and loss of all three normalizations.",
    {
        "batch, free, validation loss": 0.31,
        "batch, projected, validation loss": 0.22,
        "weight, free, validation loss": 0.9,
        "weight, projected, validation loss": 0.75,
        "analytic, free, validation loss": 0.7,
        "analytic, projected, validation loss": 0.45,
    },
    lambda preset: [Wanted(norm + suffix) for norm in NORMS for suffix in WAYS.values()],
    measure,
    draw,
)
