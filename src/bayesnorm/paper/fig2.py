"""Figure 2: less randomness in batch norm generalizes worse. Trains batch norm with two normalization batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import curve_of, final, final_std, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .preset import Preset
from .wanted import BATCH, Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def runs(preset: Preset) -> dict[str, Wanted]:
    """Both with the training batch and the learning rate of plain batch norm; the other samples only normalize."""
    return {"batch": BATCH, "large batch": Wanted("batch", norm_batch=preset.norm_batch, lr_of=BATCH)}


def measure(lab: Lab) -> Measured:
    """Training loss in both modes, validation loss and accuracy."""
    curves = {label: curve_of(lab.history(run)) for label, run in runs(lab.preset).items()}
    numbers = {}
    for label, curve in curves.items():
        numbers[f"normalization {label}, validation accuracy"] = final(curve, "val_accuracy")
        numbers[f"normalization {label}, std of iterates"] = final_std(curve, "val_accuracy")
        numbers[f"normalization {label}, validation loss"] = final(curve, "val_nll")
    return {"numbers": numbers, "curves": curves, "norm_batch": lab.preset.norm_batch}


def draw(measured: Measured) -> Figure:
    """Left: training loss in train mode (solid) and eval mode (dashed); right: validation loss."""
    names = {"batch": "normalization batch = training batch", "large batch": f"... of {measured['norm_batch']}"}
    curves = {names[label]: curve for label, curve in measured["curves"].items()}
    figure = new_figure(10.0, 4.2 + 0.28 * legend_rows(curves, 10.0))
    with styled():
        left, right = figure.subplots(1, 2)
        handles = lines(left, curves, "train_nll", shade=False)
        lines(left, curves, "train_eval_nll", shade=False, linestyle=(0, (4, 2)), marker="none")
        lines(right, curves, "val_nll")
        finish(left, "training loss", "solid: train mode, dashed: eval mode")
        finish(right, "validation loss")
        legend(figure, handles)
    return figure


exhibit = Exhibit(
    "fig2",
    "The effect of randomness in batch normalization",
    "With statistics over 1024 samples instead of 32, training and evaluation mode come closer to each other, and "
    "validation loss and accuracy get worse.",
    {
        "normalization batch, validation accuracy": 0.930,
        "normalization batch, std of iterates": 0.003,
        "normalization large batch, validation accuracy": 0.924,
        "normalization large batch, std of iterates": 0.003,
    },
    lambda preset: list(runs(preset).values()),
    measure,
    draw,
)
