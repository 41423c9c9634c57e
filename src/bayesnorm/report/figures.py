"""Calibration, rejection and robustness of evaluated runs, as figures and as the set that belongs to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .curves import scale_noise, training_curves
from .drawing import GREY, finite, legend, legend_rows, look_of, new_figure, note_if_empty, shown, styled
from .maps import segmentation_maps
from .summary import Summary
from .ways import most

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[Mapping[str, Any]]
KINDS = {"noise": "std of Gaussian noise", "attack": "size of the gradient-sign attack"}


def coverage(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Error rate of what is classified against its portion.

    Arguments:
        curves: ``coverage`` and ``risk`` of each method.
    """
    figure = new_figure(7.0, 4.6 + 0.28 * legend_rows(curves, 7.0))
    handles = []
    with styled():
        axes = figure.subplots()
        for number, (name, curve) in enumerate(curves.items()):
            look = {**look_of(number), "markevery": (3 * number % 20, 20)}
            handles += axes.plot(curve["coverage"], curve["risk"], label=shown(name), **look)
        axes.set(xlabel="completeness (portion that is classified)", ylabel="error")
        _per_cent(axes, "x", "y")
        note_if_empty(axes)
        legend(figure, handles)
    return figure


def robustness(curves: Mapping[str, Mapping[str, Points]]) -> Figure:
    """Accuracy against the strength of a disturbance; in brackets the accuracy without.

    Arguments:
        curves: for ``"noise"`` and ``"attack"`` the points of each method.
    """
    names = {name: f"{name} ({points[0]['accuracy']:.1%})" for name, points in next(iter(curves.values())).items()}
    figure = new_figure(11.0, 4.2 + 0.28 * legend_rows(names.values(), 11.0))
    handles: list[Any] = []
    with styled():
        for axes, (kind, methods) in zip(figure.subplots(1, 2), curves.items(), strict=True):
            handles = []
            for number, (name, points) in enumerate(methods.items()):
                x, y = [point["strength"] for point in points], [point["accuracy"] for point in points]
                handles += axes.plot(x, y, label=shown(names[name]), **look_of(number))
            axes.set(xlabel=KINDS[kind], ylabel="accuracy")
            _per_cent(axes, "y")
            note_if_empty(axes)
        legend(figure, handles)
    return figure


def reliability(bins: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Figure:
    """Accuracy against confidence; on the diagonal probabilities mean what they say.

    Arguments:
        bins: ``confidence`` and ``accuracy`` of each method, None where a bin is empty.
    """
    figure = new_figure(5.8, 5.6 + 0.28 * legend_rows(bins, 5.8))
    handles: list[Any] = []
    with styled():
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
        for number, (name, found) in enumerate(bins.items()):
            x, y = ([finite(value) for value in found[key]] for key in ("confidence", "accuracy"))
            handles += axes.plot(x, y, label=shown(name), **look_of(number))
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
        _per_cent(axes, "x", "y")
        legend(figure, handles)
    return figure


def _per_cent(axes: Axes, *which: str) -> None:
    from matplotlib.ticker import PercentFormatter

    for name in which:
        (axes.xaxis if name == "x" else axes.yaxis).set_major_formatter(PercentFormatter(1.0))


def figures_of(summaries: Sequence[Summary]) -> dict[str, Figure]:
    """The figures of a report by their name, each if there is something to show."""
    figures = {"training": training_curves({run.name: run.history for run in summaries})}
    judged = {run.name: run.evaluation for run in summaries if run.evaluation}
    if judged:
        figures["reliability"] = reliability({name: _most(found, "reliability") for name, found in judged.items()})
        figures["coverage"] = coverage({name: _most(found, "coverage")["entropy"] for name, found in judged.items()})
    ratios = {name: found["sigma_over_s"] for name, found in judged.items() if found["sigma_over_s"]}
    if ratios:
        figures["sigma"] = scale_noise(ratios)
    disturbed = {run.name: run.robustness for run in summaries if run.robustness}
    if disturbed:
        figures["robustness"] = robustness(
            {kind: {name: found[kind] for name, found in disturbed.items()} for kind in KINDS}
        )
    return figures | _maps(summaries)


def _maps(summaries: Sequence[Summary]) -> dict[str, Figure]:
    """Of runs on segmented images, numbered as the runs are."""
    numbered = [(number, run) for number, run in enumerate(summaries, 1) if run.examples]
    drawn = {number: segmentation_maps(run.name, run.examples or {}) for number, run in numbered}
    return {f"maps{number if len(summaries) > 1 else ''}": figure for number, figure in drawn.items() if figure}


def _most(evaluation: Mapping[str, Any], what: str) -> Any:
    """By the way of predicting with the most draws."""
    return evaluation[what][most(evaluation[what])]
