"""Figure 5: noise like that of batch norm in the deterministic norms. Measures it, and trains with and without it.

All runs project. The noise is that of a network trained with batch norm, one sigma_U and sigma_V per layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import curve_of, final, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import BATCH, Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NORMS = {"weight": "Weight Normalization", "analytic": "Analytic Normalization"}


def runs(norm: str) -> dict[str, Wanted]:
    """Without and with noise."""
    return {
        "no noise": Wanted(f"{norm}+projection"),
        "noise of BN": Wanted(f"{norm}+projection+noise", noise_of=BATCH),
    }


def measure(lab: Lab) -> Measured:
    """Validation accuracy and loss."""
    panels = {norm: {label: curve_of(lab.history(run)) for label, run in runs(norm).items()} for norm in NORMS}
    numbers = {
        f"{norm}, {label}, {what}": final(curve, name)
        for norm, curves in panels.items()
        for label, curve in curves.items()
        for what, name in (("validation loss", "val_nll"), ("validation accuracy", "val_accuracy"))
    }
    return {"numbers": numbers, "panels": panels, "noise": lab.bn_noise(BATCH)["trained"]}


def draw(measured: Measured) -> Figure:
    """Top: validation accuracies, bottom: validation losses."""
    panels = measured["panels"]
    figure = new_figure(10.0, 7.4 + 0.28 * legend_rows(panels["weight"], 10.0))
    handles = []
    with styled():
        for column, (norm, curves) in zip(figure.subplots(2, 2).T, panels.items(), strict=True):
            handles = lines(column[0], curves, "val_accuracy")
            lines(column[1], curves, "val_nll")
            finish(column[0], "validation accuracy", NORMS[norm])
            finish(column[1], "validation loss")
        legend(figure, handles)
    return figure


exhibit = Exhibit(
    "fig5",
    "Deterministic normalizations with noise like that of BN",
    "The noise improves validation accuracy and loss of weight normalization noticeably, of analytic normalization "
    "insignificantly.",
    {},
    lambda preset: [run for norm in NORMS for run in runs(norm).values()],
    measure,
    draw,
)
