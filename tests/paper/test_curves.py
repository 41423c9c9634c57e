"""Running means, their std and how they are drawn, against hand-computed cases."""

import math
import statistics
from typing import Any

import pytest
from matplotlib.figure import Figure

from bayesnorm.paper.curves import (
    QUANTITIES,
    curve_of,
    dashed,
    final,
    final_std,
    finish,
    lines,
    points,
    running,
    triangles,
    window_of,
)

LOSS = [2.0, 1.0, 0.5, 0.25, 0.5, 0.25, 0.125, 0.25, 0.125]
ACCURACY = [0.1, 0.5, 0.6, 0.7, 0.6, 0.8, 0.9, 0.7, 0.8]


def curve(count: int = 9, **changed: list[float | None]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {
        "epoch": list(range(1, count + 1)),
        "train_nll": LOSS[:count],
        "train_eval_nll": [value / 2 for value in LOSS[:count]],
        "val_nll": [2 * value for value in LOSS[:count]],
        "val_accuracy": ACCURACY[:count],
    }
    return {**values, **changed}


def axes() -> Any:
    return Figure().subplots()


def test_a_curve_has_what_is_drawn_and_none_where_it_was_not_measured() -> None:
    found = curve_of([{"epoch": 1, "val_nll": 0.5, "kl": 3.0}, {"epoch": 2, "val_nll": None, "val_accuracy": 0.4}])
    assert tuple(found) == QUANTITIES
    assert found["epoch"] == [1, 2]
    assert found["val_nll"] == [0.5, None]
    assert found["val_accuracy"] == [None, 0.4]
    assert found["train_nll"] == [None, None]


@pytest.mark.parametrize(
    ("count", "window"), [(0, 1), (1, 1), (5, 1), (6, 2), (9, 3), (10, 3), (50, 3), (90, 4), (1200, 60), (3000, 150)]
)
def test_window(count: int, window: int) -> None:
    assert window_of(count) == window


@pytest.mark.parametrize("window", [1, 2, 3, 9, 100])
def test_running_mean_and_std_are_those_of_the_last_values(window: int) -> None:
    means, stds = running(LOSS, window)
    for index in range(len(LOSS)):
        some = LOSS[max(0, index + 1 - window) : index + 1]
        assert means[index] == pytest.approx(sum(some) / len(some))
        assert stds[index] == pytest.approx(statistics.pstdev(some))


def test_what_is_missing_is_left_out_of_the_mean() -> None:
    means, stds = running([1.0, None, 3.0, math.inf, math.nan], 2)
    assert means[:4] == [1.0, 1.0, 3.0, 3.0]
    assert stds[:4] == [0.0] * 4
    assert math.isnan(means[4])
    assert math.isnan(stds[4])
    assert running([], 3) == ([], [])


def test_the_last_value_is_that_of_the_running_mean() -> None:
    assert final(curve(), "val_accuracy") == pytest.approx((0.9 + 0.7 + 0.8) / 3)
    assert final(curve(4), "val_accuracy") == 0.7  # too short for a mean
    assert final(curve(2, val_nll=[1.0, None]), "val_nll") is None
    assert final(curve(0), "val_nll") is None


def test_std_of_the_iterates_of_a_short_run_is_that_of_the_last_three() -> None:
    assert final_std(curve(), "val_accuracy") == pytest.approx(statistics.pstdev([0.9, 0.7, 0.8]))
    assert final_std(curve(4), "val_accuracy") == pytest.approx(statistics.pstdev([0.5, 0.6, 0.7]))
    assert final_std(curve(1), "val_accuracy") == 0.0
    assert final_std(curve(0), "val_accuracy") is None
    long = curve(0, epoch=list(range(1, 101)), val_accuracy=[i % 7 / 7 for i in range(100)])
    assert final_std(long, "val_accuracy") == pytest.approx(statistics.pstdev([i % 7 / 7 for i in range(95, 100)]))


def test_lines_are_running_means_with_the_std_as_a_shade() -> None:
    place = axes()
    drawn = lines(place, {"first": curve(), "second": curve(6)}, "val_accuracy")
    assert [line.get_label() for line in drawn] == ["first", "second"]
    assert drawn[0].get_color() != drawn[1].get_color()
    for line, shade, count in zip(drawn, place.collections, (9, 6), strict=True):
        means, stds = running(ACCURACY[:count], window_of(count))
        assert list(line.get_xdata()) == list(range(1, count + 1))
        assert list(line.get_ydata()) == pytest.approx(means)
        area = {(round(x, 6), round(y, 6)) for x, y in shade.get_paths()[0].vertices}
        assert area == {
            (float(i), round(value, 6))
            for i, (mean, std) in enumerate(zip(means, stds, strict=True), 1)
            for value in (mean - std, mean + std)
        }


def test_only_methods_that_were_asked_for_are_shaded() -> None:
    place = axes()
    drawn = lines(place, {"first": curve(), "second": curve()}, "val_nll", shade=["second"])
    assert len(place.lines) == 2
    (shade,) = place.collections
    assert tuple(shade.get_facecolor()[0][:3]) == pytest.approx(
        tuple(int(str(drawn[1].get_color())[i : i + 2], 16) / 255 for i in (1, 3, 5))
    )
    lines(place, {"third": curve()}, "val_nll", shade=())
    assert len(place.collections) == 1


def test_a_loss_of_zero_or_infinity_leaves_a_gap_on_the_logarithmic_axis() -> None:
    place = axes()
    (line,) = lines(place, {"only": curve(4, train_nll=[1.0, 0.0, None, 0.5])}, "train_nll")
    finish(place, "training loss")
    assert list(line.get_ydata()) == pytest.approx([1.0, math.nan, math.nan, 0.5], nan_ok=True)
    assert place.get_yscale() == "log"


def test_evaluation_mode_is_dashed_in_the_colour_of_its_method() -> None:
    place = axes()
    curves = {"first": curve(), "second": curve()}
    solid = lines(place, curves, "train_nll", shade=())
    (line,) = dashed(place, curves, ["second"])
    assert line.get_color() == solid[1].get_color()
    assert line.is_dashed()
    assert list(line.get_ydata()) == pytest.approx(running(curve()["train_eval_nll"], 3)[0])


def test_triangles_are_the_losses_with_mean_parameters_themselves() -> None:
    place = axes()
    (drawn,) = triangles(place, {"first": curve(), "second": curve()}, ["second"])
    assert (drawn.get_marker(), drawn.get_linestyle()) == ("^", "None")
    assert list(drawn.get_ydata()) == curve()["train_eval_nll"]


@pytest.mark.parametrize(
    ("label", "scale"), [("training loss", "log"), ("validation loss", "log"), ("validation accuracy", "linear")]
)
def test_losses_are_logarithmic_and_accuracies_are_not(label: str, scale: str) -> None:
    place = axes()
    lines(place, {"only": curve()}, "val_accuracy" if "accuracy" in label else "val_nll")
    finish(place, label, "of it")
    assert (place.get_xlabel(), place.get_ylabel(), place.get_title()) == ("epoch", label, "of it")
    assert (place.get_xscale(), place.get_yscale()) == ("linear", scale)


def test_without_data_the_axes_say_so() -> None:
    place = axes()
    lines(place, {"empty": curve(0)}, "val_nll")
    finish(place, "validation loss")
    assert [text.get_text() for text in place.texts] == ["no data"]


def test_over_epochs_that_were_not_evaluated_a_curve_goes_on() -> None:
    """As if there were no others; the window counts what was measured."""
    whole, every = curve(), (2, 5, 8)
    sparse = {name: [v if i in every else None for i, v in enumerate(values)] for name, values in whole.items()}
    sparse |= {name: whole[name] for name in ("epoch", "train_nll")}
    short = {name: [whole[name][i] for i in every] for name in QUANTITIES}
    for name in ("val_nll", "val_accuracy", "train_eval_nll"):
        assert points(sparse, name) == ([3.0, 6.0, 9.0], short[name])
        assert (final(sparse, name), final_std(sparse, name)) == (final(short, name), final_std(short, name))
    assert points(sparse, "train_nll") == ([float(i) for i in range(1, 10)], LOSS)
    place = axes()
    (line,) = lines(place, {"only": sparse}, "val_accuracy")
    (still,) = dashed(place, {"only": sparse}, ["only"])
    (marks,) = triangles(place, {"only": sparse}, ["only"])
    for drawn, name in ((line, "val_accuracy"), (still, "train_eval_nll"), (marks, "train_eval_nll")):
        assert list(drawn.get_xdata()) == [3, 6, 9]
        assert list(drawn.get_ydata()) == pytest.approx(short[name])


def test_an_evaluated_epoch_with_an_infinite_loss_is_a_gap() -> None:
    place = axes()
    (line,) = lines(place, {"only": curve(4, val_nll=[1.0, None, 0.5, 0.25])}, "val_nll")
    assert list(line.get_xdata()) == [1, 2, 3, 4]
    assert math.isnan(list(line.get_ydata())[1])
