"""Figure 1: batch normalization regularizes. Trains the standard network and batch norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import curve_of, dashed, final, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import BATCH, Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = {"standard": Wanted("none"), "BN": BATCH}


def measure(lab: Lab) -> Measured:
    """Training loss in both modes and validation accuracy."""
    curves = {label: curve_of(lab.history(run)) for label, run in RUNS.items()}
    train, evaluated = (final(curves["BN"], name) for name in ("train_nll", "train_eval_nll"))
    numbers = {
        "BN, validation accuracy": final(curves["BN"], "val_accuracy"),
        "BN, training loss, train mode / eval mode": train / evaluated if train and evaluated else None,
        "standard, training loss": final(curves["standard"], "train_nll"),
        "standard, validation accuracy": final(curves["standard"], "val_accuracy"),
    }
    return {"numbers": numbers, "curves": curves}


def draw(measured: Measured) -> Figure:
    """Left: training loss, for BN in both modes; right: validation accuracy."""
    curves = measured["curves"]
    figure = new_figure(10.0, 4.2 + 0.28 * legend_rows([*curves, "BN Eval"], 10.0))
    with styled():
        left, right = figure.subplots(1, 2)
        handles = lines(left, curves, "train_nll", shade=())
        (evaluated,) = dashed(left, curves, ["BN"])
        evaluated.set_label("BN Eval")
        lines(right, curves, "val_accuracy")
        finish(left, "training loss")
        finish(right, "validation accuracy")
        legend(figure, [*handles, evaluated])
    return figure


exhibit = Exhibit(
    "fig1",
    "Batch normalization against standard training",
    "BN converges to a small but not vanishing training loss, is an order of magnitude lower in evaluation mode, and "
    "generalizes better; standard training reaches numerical accuracy.",
    {
        "BN, validation accuracy": 0.93,
        "BN, training loss, train mode / eval mode": "an order of magnitude",
        "standard, training loss": "numerical accuracy",
    },
    lambda preset: list(RUNS.values()),
    measure,
    draw,
)
