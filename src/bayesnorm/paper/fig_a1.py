"""Figure A1: dependence on the training batch size. Trains the standard network and batch norm with several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import curve_of, final, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .preset import Preset
from .wanted import Wanted, aside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"none": "standard training", "batch": "batch normalization"}
PROTOCOL = 32
"""The batch size of the protocol: where all runs are equally long, these are shared with other figures."""


def runs(preset: Preset, method: str) -> dict[str, Wanted]:
    """By batch size."""
    sizes = {f"batch {size}": None if size == PROTOCOL else size for size in preset.batch_sizes}
    return {label: aside(Wanted(method, batch=size), preset) for label, size in sizes.items()}


def measure(lab: Lab) -> Measured:
    """Training and validation loss."""
    panels = {
        method: {label: curve_of(lab.history(run)) for label, run in runs(lab.preset, method).items()}
        for method in METHODS
    }
    numbers = {
        f"{method}, {label}, {what}": final(curve, name)
        for method, curves in panels.items()
        for label, curve in curves.items()
        for what, name in (
            ("training loss", "train_nll"),
            ("validation loss", "val_nll"),
            ("validation accuracy", "val_accuracy"),
        )
    }
    return {"numbers": numbers, "panels": panels}


def draw(measured: Measured) -> Figure:
    """Top: standard training, bottom: batch norm; left: training loss, right: validation loss."""
    panels = measured["panels"]
    figure = new_figure(10.0, 7.4 + 0.28 * legend_rows(panels["none"], 10.0))
    handles = []
    with styled():
        for row, (method, curves) in zip(figure.subplots(2, 2), panels.items(), strict=True):
            handles = lines(row[0], curves, "train_nll", shade=())
            lines(row[1], curves, "val_nll")
            finish(row[0], "training loss", METHODS[method])
            finish(row[1], "validation loss", METHODS[method])
        legend(figure, handles)
    return figure


exhibit = Exhibit(
    "figA1",
    "Dependence of SGD on the training batch size",
    "Larger batches learn more slowly; with BN the stochasticity of BN and SGD decreases, and the accuracy with it.",
    {},
    lambda preset: [run for method in METHODS for run in runs(preset, method).values()],
    measure,
    draw,
)
