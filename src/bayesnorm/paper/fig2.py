"""Figure 2: less randomness in batch norm generalizes worse. Trains batch norm with two normalization batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..report.drawing import legend, legend_rows, new_figure, styled
from .curves import Curve, curve_of, dashed, final, final_std, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .preset import Preset
from .wanted import BATCH, Wanted, aside

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def runs(preset: Preset) -> dict[str, Wanted]:
    """Both with the training batch and the learning rate of plain batch norm; the other samples only normalize."""
    small = aside(BATCH, preset)
    return {"small": small, "large": aside(Wanted("batch", norm_batch=preset.norm_batch, lr_of=small), preset)}


def measure(lab: Lab) -> Measured:
    """Training loss in both modes, validation loss and accuracy."""
    both = runs(lab.preset)
    sizes = {"small": lab.folder(both["small"]).about()["config"]["batch"], "large": lab.preset.norm_batch}
    return compared({label: curve_of(lab.history(run)) for label, run in both.items()}, sizes)


def compared(curves: Mapping[str, Curve], sizes: Mapping[str, int]) -> Measured:
    """The same of curves that are there, with the sizes of their normalization batches."""
    numbers = {}
    for label, curve in curves.items():
        numbers[f"{label} normalization batch, validation accuracy"] = final(curve, "val_accuracy")
        numbers[f"{label} normalization batch, std of iterates"] = final_std(curve, "val_accuracy")
        numbers[f"{label} normalization batch, validation loss"] = final(curve, "val_nll")
    return {"numbers": numbers, "curves": curves, "sizes": sizes}


def draw(measured: Measured) -> Figure:
    """Left: training loss in train mode (solid) and eval mode (dashed); right: validation loss."""
    curves = {f"normalization batch {measured['sizes'][label]}": curve for label, curve in measured["curves"].items()}
    figure = new_figure(10.0, 4.2 + 0.28 * legend_rows(curves, 10.0))
    with styled():
        left, right = figure.subplots(1, 2)
        handles = lines(left, curves, "train_nll", shade=())
        dashed(left, curves, curves)
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
        "small normalization batch, validation accuracy": 0.930,
        "small normalization batch, std of iterates": 0.003,
        "large normalization batch, validation accuracy": 0.924,
        "large normalization batch, std of iterates": 0.003,
    },
    lambda preset: list(runs(preset).values()),
    measure,
    draw,
)
