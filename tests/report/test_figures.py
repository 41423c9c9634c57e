"""Figures of evaluated runs show the numbers of the documents, and only those that there are."""

from pathlib import Path
from typing import Any

import pytest
from made_up_runs import coverage as made_up_coverage
from made_up_runs import evaluation, metrics, reliability, robustness, run

from bayesnorm.report import figures
from bayesnorm.report.drawing import save
from bayesnorm.report.figures import figures_of

NAMES = {"training", "reliability", "coverage", "sigma", "robustness"}


def ydata(line: Any) -> list[float]:
    return [float(value) for value in line.get_ydata()]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_error_against_coverage() -> None:
    curves = {"first": made_up_coverage(0.1)["entropy"], "second": made_up_coverage(0.2)["max_prob"]}
    figure = figures.coverage(curves)
    (axes,) = figure.axes
    assert [ydata(line) for line in axes.lines] == [curve["risk"] for curve in curves.values()]
    assert [list(line.get_xdata()) for line in axes.lines] == [curve["coverage"] for curve in curves.values()]
    assert axes.get_xlabel() == "completeness (portion that is classified)"
    assert axes.get_ylabel() == "error"
    assert legend(figure) == ["first", "second"]


def test_robustness_has_the_undisturbed_accuracy_in_brackets() -> None:
    points = robustness()["noise"]
    worse = [{**point, "accuracy": point["accuracy"] / 2, "nll": None} for point in points]
    figure = figures.robustness({"noise": {"a": points, "b": worse}, "attack": {"a": worse, "b": points}})
    noise, attack = figure.axes
    assert [ydata(line) for line in noise.lines] == [[p["accuracy"] for p in some] for some in (points, worse)]
    assert [ydata(line) for line in attack.lines] == [[p["accuracy"] for p in some] for some in (worse, points)]
    assert [axes.get_xlabel() for axes in figure.axes] == list(figures.KINDS.values())
    assert legend(figure) == ["a (90.0%)", "b (45.0%)"]


def test_reliability_leaves_empty_bins_out() -> None:
    bins = reliability()
    (axes,) = figures.reliability({"only": bins}).axes
    diagonal, line = axes.lines
    assert (list(diagonal.get_xdata()), ydata(diagonal)) == ([0, 1], [0, 1])
    drawn = [value for value in ydata(line) if value == value]
    assert drawn == [value for value in bins["accuracy"] if value is not None]
    assert len(drawn) == 8


def test_names_are_text_and_never_formulas(tmp_path: Path) -> None:
    name = "_a$^{b"
    curves = {name: made_up_coverage(0.1)["entropy"]}
    figure = figures.coverage(curves)
    assert legend(figure) == [f"\u200b{name}"]
    assert len(save(figure, tmp_path / "x")) == 2


def test_the_set_of_a_report() -> None:
    assert set(figures_of([run("a"), run("b", bayes=False)])) == NAMES


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"robustness": None}, {"robustness"}),
        ({"evaluation": None}, {"reliability", "coverage", "sigma"}),
        ({"evaluation": None, "robustness": None, "examples": None}, NAMES - {"training"}),
    ],
)
def test_what_was_not_measured_is_not_drawn(changed: dict[str, Any], missing: set[str]) -> None:
    assert set(figures_of([run(**changed)])) == NAMES - missing
    assert set(figures_of([run("a"), run("b", **changed)])) == NAMES


def test_a_run_without_posterior_has_no_learned_noise() -> None:
    assert set(figures_of([run(bayes=False)])) == NAMES - {"sigma"}


@pytest.mark.parametrize("order", [("single", "mc10", "mc30", "moments"), ("moments", "mc30", "single", "mc10")])
def test_predictions_are_those_with_the_most_draws(order: tuple[str, ...]) -> None:
    errors = {"single": 0.4, "mc10": 0.3, "mc30": 0.2, "moments": 0.1}
    ways = {way: metrics(accuracy=1 - errors[way]) for way in order}
    (axes,) = figures_of([run(evaluation=evaluation(ways, bayes=True))])["coverage"].axes
    assert ydata(axes.lines[0])[-1] == pytest.approx(0.2)
