"""Figures 6 and 7 have one form: a norm as it is, with projection, and with Bayesian learning too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import curve_of, final, finish, lines, triangles
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = {"baseline": "", "projection": "+projection", "projection + Bayes": "+projection+bayes"}
BAYES = "projection + Bayes"
MEANS = "with mean parameters"


def improvements(id: str, norm: str, title: str, claim: str, paper: dict[str, Any]) -> Exhibit:
    """The figure of a norm."""
    runs = {label: Wanted(norm + suffix) for label, suffix in SUFFIXES.items()}

    def measure(lab: Lab) -> Measured:
        curves = {label: curve_of(lab.history(run)) for label, run in runs.items()}
        numbers = {
            f"{label}, {what}": final(curve, name)
            for label, curve in curves.items()
            for what, name in (("validation loss", "val_nll"), ("validation accuracy", "val_accuracy"))
        }
        averaged = lab.validation(runs[BAYES], samples=10)["metrics"]
        numbers[f"{BAYES}, validation loss by MC-10"] = averaged["mc10"]["nll"]
        return {"numbers": numbers, "curves": curves}

    return Exhibit(id, title, claim, paper, lambda preset: list(runs.values()), measure, draw)


def draw(measured: Measured) -> Figure:
    """Training loss (line: running mean over draws, triangles: mean parameters), validation loss and accuracy."""
    curves = measured["curves"]
    figure = new_figure(12.6, 4.1 + 0.28 * legend_rows([*curves, MEANS]))
    with styled():
        training, loss, accuracy = figure.subplots(1, 3)
        # Lines without markers: a triangle is the loss with mean parameters and nothing else.
        handles = lines(training, curves, "train_nll", shade=(), marker="none")
        (means,) = triangles(training, curves, [BAYES])
        means.set_label(MEANS)
        lines(loss, curves, "val_nll", marker="none")
        lines(accuracy, curves, "val_accuracy", marker="none")
        finish(training, "training loss")
        finish(loss, "validation loss")
        finish(accuracy, "validation accuracy")
        legend(figure, [*handles, means])
    return figure
