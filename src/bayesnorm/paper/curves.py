"""Training histories as the paper draws them: running means of the iterates, with their std as a shade."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..report.drawing import (
    accuracies,
    finite,
    log_axis,
    look_of,
    note_if_empty,
    positive,
    shown,
    values_of,
    whole_numbers,
)
from ..train.events import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

EVALUATED = ("train_eval_nll", "val_nll", "val_accuracy")
QUANTITIES = ("epoch", "train_nll", *EVALUATED)
Curve = Mapping[str, Sequence[float | None]]


def curve_of(history: Sequence[Record]) -> dict[str, list[Any]]:
    """What is drawn of a history, for a file; what was not measured, or is infinite, is None.

    >>> curve_of([{"epoch": 1, "val_nll": 0.5}])["val_nll"]
    [0.5]
    """
    return {name: [record.get(name) for record in history] for name in QUANTITIES}


def points(curve: Curve, name: str) -> tuple[list[float], list[float | None]]:
    """Epochs and values of a quantity, without the epochs that were not evaluated (``Config.eval_every``).

    >>> points({"epoch": [1, 2], "val_nll": [None, 0.5], "val_accuracy": [None, 1.0]}, "val_nll")
    ([2.0], [0.5])
    """
    pairs = zip(curve["epoch"], curve[name], strict=True)
    rows = zip_longest(*(curve.get(key, ()) for key in EVALUATED))
    judged = [name not in EVALUATED or any(value is not None for value in row) for row in rows]
    kept = [pair for pair, keep in zip(pairs, judged, strict=False) if keep]
    return [float(epoch or 0) for epoch, _ in kept], [value for _, value in kept]


def window_of(count: int) -> int:
    """Iterates that a running mean takes together: a twentieth of them, of short runs up to three.

    >>> window_of(4), window_of(10), window_of(1200)
    (1, 3, 60)
    """
    return max(1, min(3, count // 3), round(count / 20))


def running(values: Sequence[float | None], window: int) -> tuple[list[float], list[float]]:
    """Mean and std of each value and those before it, ``window`` in all; what is missing is left out.

    >>> running([1.0, 3.0, 5.0], 2)
    ([1.0, 2.0, 4.0], [0.0, 1.0, 1.0])
    """
    means, stds = [], []
    for index in range(len(values)):
        some = [number for v in values[max(0, index - window + 1) : index + 1] if math.isfinite(number := finite(v))]
        means.append(statistics.fmean(some) if some else math.nan)
        stds.append(statistics.pstdev(some) if some else math.nan)
    return means, stds


def final(curve: Curve, name: str) -> float | None:
    """Running mean at the end of training."""
    _, values = points(curve, name)
    means, _ = running(values, window_of(len(values)))
    return means[-1] if means and math.isfinite(means[-1]) else None


def final_std(curve: Curve, name: str) -> float | None:
    """Std of the iterates of that mean; of very short runs that of the last three."""
    _, values = points(curve, name)
    _, stds = running(values, max(window_of(len(values)), min(3, len(values))))
    return stds[-1] if stds and math.isfinite(stds[-1]) else None


def lines(
    axes: Axes, curves: Mapping[str, Curve], name: str, shade: Collection[str] | None = None, **look: Any
) -> list[Line2D]:
    """A running mean per method with the std of the iterates around it.

    Arguments:
        curves: by the label of the method.
        name: the quantity.
        shade: methods of which the std is drawn; None: all.
    """
    drawn = []
    for number, (label, curve) in enumerate(curves.items()):
        keep = finite if name == "val_accuracy" else positive
        epochs, values = points(curve, name)
        means, stds = running([keep(value) for value in values], window_of(len(epochs)))
        every = max(1, len(epochs) // 8)
        drawn += axes.plot(epochs, means, label=shown(label), **{**look_of(number), "markevery": every, **look})
        if shade is None or label in shade:
            low = [keep(mean - std) for mean, std in zip(means, stds, strict=True)]
            high = [mean + std for mean, std in zip(means, stds, strict=True)]
            axes.fill_between(epochs, low, high, color=look_of(number)["color"], alpha=0.15, linewidth=0)
    return drawn


def dashed(axes: Axes, curves: Mapping[str, Curve], labels: Collection[str]) -> list[Line2D]:
    """Training loss in evaluation mode, running mean, of some methods."""
    drawn = []
    for number, (label, curve) in enumerate(curves.items()):
        if label in labels:
            epochs, values = points(curve, "train_eval_nll")
            means, _ = running([positive(value) for value in values], window_of(len(epochs)))
            drawn += axes.plot(epochs, means, color=look_of(number)["color"], linestyle=(0, (4, 2)))
    return drawn


def triangles(axes: Axes, curves: Mapping[str, Curve], labels: Collection[str]) -> list[Line2D]:
    """Training loss with the mean parameters, of some methods, as the paper marks it."""
    drawn = []
    for number, (label, curve) in enumerate(curves.items()):
        if label in labels:
            epochs, found = points(curve, "train_eval_nll")
            values = [positive(value) for value in found]
            look: Any = {"markersize": 7, "markeredgecolor": "white", "markevery": max(1, len(values) // 15)}
            drawn += axes.plot(epochs, values, "^", color=look_of(number)["color"], **look)
    return drawn


def finish(axes: Axes, label: str, title: str = "") -> None:
    """Labels and scales: losses are logarithmic, accuracies are per cent."""
    axes.set(xlabel="epoch", ylabel=label)
    if title:
        axes.set_title(title, fontsize=11)
    whole_numbers(axes.xaxis)
    note_if_empty(axes)
    if "accuracy" in label:
        accuracies(axes)
    else:
        log_axis(axes, "y", values_of(axes))
