"""Figure A2: runs with other seeds. Trains batch norm and analytic norm with Bayes, the learning rate kept."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ..report.drawing import legend, new_figure, styled
from .curves import curve_of, final, final_std, finish, lines
from .exhibit import Exhibit, Measured
from .lab import Lab
from .preset import Preset
from .wanted import BATCH, Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST = {"Batch normalization": BATCH, "Analytic normalization, Bayes": Wanted("analytic+projection+bayes")}


def runs(preset: Preset, first: Wanted) -> dict[str, Wanted]:
    """By seed; the split of the data and the learning rate are those of the first."""
    others = {seed: Wanted(first.method, seed=seed, lr_of=first) for seed in preset.seeds if seed != first.seed}
    return {f"seed {seed}": run for seed, run in {first.seed: first, **others}.items()}


def measure(lab: Lab) -> Measured:
    """Validation accuracy of every seed."""
    panels = {
        title: {label: curve_of(lab.history(run)) for label, run in runs(lab.preset, first).items()}
        for title, first in FIRST.items()
    }
    numbers: dict[str, float | None] = {}
    for title, curves in panels.items():
        last = [value for curve in curves.values() if (value := final(curve, "val_accuracy")) is not None]
        numbers[f"{title}, mean over seeds"] = statistics.fmean(last)
        numbers[f"{title}, std over seeds"] = statistics.stdev(last)
        numbers[f"{title}, std of iterates of a run"] = final_std(curves[f"seed {FIRST[title].seed}"], "val_accuracy")
    return {"numbers": numbers, "panels": panels}


def draw(measured: Measured) -> Figure:
    """Validation accuracy; the shade is the std of the iterates of the first run."""
    figure = new_figure(10.0, 4.4)
    handles = []
    with styled():
        for axes, (title, curves) in zip(figure.subplots(1, 2), measured["panels"].items(), strict=True):
            handles = lines(axes, curves, "val_accuracy", shade=list(curves)[:1])
            finish(axes, "validation accuracy", title)
        legend(figure, handles)
    return figure


exhibit = Exhibit(
    "figA2",
    "Runs with different random seeds",
    "Runs with different seeds are within the standard deviation of the iterates of a single run.",
    {},
    lambda preset: [run for first in FIRST.values() for run in runs(preset, first).values()],
    measure,
    draw,
)
