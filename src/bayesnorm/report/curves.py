"""Curves of training runs, of the learned noise and of a learning-rate search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .drawing import (
    COLOURS,
    GREY,
    accuracies,
    finite,
    legend,
    legend_rows,
    log_axis,
    look_of,
    new_figure,
    note,
    note_if_empty,
    positive,
    shown,
    styled,
    values_of,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

History = Sequence[Mapping[str, Any]]


def training_curves(histories: Mapping[str, History]) -> Figure:
    """Training NLL (running mean, and dashed in evaluation mode), validation NLL and validation accuracy by epoch.

    Arguments:
        histories: for each method its records, one per epoch, with ``epoch``, ``train_nll``, ``train_eval_nll``,
            ``val_nll`` and ``val_accuracy``. What is None or not finite leaves a gap; over epochs that lack a quantity
            its line goes on.
    """
    figure = new_figure(12.6, 4.1 + 0.28 * legend_rows(histories))
    with styled():
        training, loss, accuracy = figure.subplots(1, 3)
        lines = [
            _line(training, number, history, "train_nll", name)
            for number, (name, history) in enumerate(histories.items())
        ]
        for number, history in enumerate(histories.values()):
            _line(training, number, history, "train_eval_nll", linestyle=(0, (4, 2)), marker="none")
            _line(loss, number, history, "val_nll")
            _line(accuracy, number, history, "val_accuracy")
        for axes, label in ((training, "training NLL"), (loss, "validation NLL"), (accuracy, "validation accuracy")):
            axes.set(xlabel="epoch", ylabel=label)
            whole_numbers(axes.xaxis)
            note_if_empty(axes)
        training.set_title("solid: running mean, dashed: evaluation mode", fontsize=9.5, color=GREY, loc="left")
        log_axis(training, "y", values_of(training))
        log_axis(loss, "y", values_of(loss))
        accuracies(accuracy)
        legend(figure, lines)
    return figure


def scale_noise(ratios: Mapping[str, Mapping[str, float]]) -> Figure:
    """The learned ``sigma / s`` of each layer, a line for each method.

    Arguments:
        ratios: for each method the ratio by layer; layers in the order in which they first occur.
    """
    layers = list(dict.fromkeys(layer for of_method in ratios.values() for layer in of_method))
    longest = max((len(layer) for layer in layers), default=0)
    slanted = longest * len(layers) > 70
    width = min(16.0, max(6.4, 0.55 * len(layers) + 1.6))
    figure = new_figure(width, 3.9 + 0.28 * legend_rows(ratios, width) + (0.06 * longest if slanted else 0.0))
    with styled():
        axes = figure.subplots()
        lines = []
        for number, (name, of_method) in enumerate(ratios.items()):
            values = [positive(of_method.get(layer)) for layer in layers]
            lines += axes.plot(range(len(layers)), values, label=shown(name), **look_of(number))
        turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        axes.set_xticks(range(len(layers)), [shown(layer) for layer in layers], parse_math=False, **turn)
        axes.set(xlabel="layer", ylabel="learned noise \N{GREEK SMALL LETTER SIGMA} / s")
        note_if_empty(axes)
        log_axis(axes, "y", values_of(axes))
        legend(figure, lines)
    return figure


def lr_curve(trials: Sequence[Mapping[str, Any]], best: float) -> Figure:
    """Training loss of each trial of a learning-rate search; diverged trials are crosses at the top.

    Arguments:
        trials: ``lr`` and ``loss`` of each, in any order; a loss that is None or not finite is a trial that diverged.
        best: the learning rate that was chosen.
    """
    ordered = sorted(trials, key=lambda trial: float(trial["lr"]))
    finished = [(float(t["lr"]), finite(t["loss"])) for t in ordered if math.isfinite(finite(t["loss"]))]
    diverged = [float(t["lr"]) for t in ordered if not math.isfinite(finite(t["loss"]))]
    figure = new_figure(6.4, 4.3)
    with styled():
        axes = figure.subplots()
        lines: list[Line2D] = []
        if finished:
            lines += axes.plot([lr for lr, _ in finished], [loss for _, loss in finished], label="trials", **look_of(0))
        else:
            axes.set_yticks([])
        if diverged:
            look: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "linestyle": "none"}
            at_top = axes.get_xaxis_transform()
            lines += axes.plot(
                diverged, [0.97] * len(diverged), label="diverged", transform=at_top, color=COLOURS[1], **look
            )
        if math.isfinite(best):
            lines.append(axes.axvline(best, color=GREY, linestyle=":", label=f"chosen: {best:.3g}"))
        axes.set(xlabel="learning rate", ylabel="training NLL")
        log_axis(axes, "x", [float(trial["lr"]) for trial in trials])
        log_axis(axes, "y", [loss for _, loss in finished])
        axes.margins(y=0.12)
        if not trials:
            note(axes)
        legend(figure, lines)
    return figure


def _line(axes: Axes, number: int, history: History, key: str, name: str = "", **look: Any) -> Line2D:
    """One quantity of a history, with a few markers, for each method at other epochs: they do not cover each other."""
    history = [record for record in history if key in record]
    epochs = [record["epoch"] for record in history]
    values = [(finite if key == "val_accuracy" else positive)(record.get(key)) for record in history]
    apart = max(1, len(history) // 8)
    shift = number * apart // max(1, len(COLOURS)) % apart
    look = {**look_of(number), "markevery": (shift, apart), **look}
    if sum(map(math.isfinite, values)) == 1:
        look["marker"] = look_of(number)["marker"]  # a line of one point is nothing but its marker
        look["markevery"] = 1
        if "linestyle" in look:
            look["markerfacecolor"], look["markeredgecolor"] = "white", look["color"]
    (line,) = axes.plot(epochs, values, label=shown(name) or None, **look)
    return line
