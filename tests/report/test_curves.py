"""Figures hold the numbers they were given, and are written as real, complete and reproducible files."""

import math
import os
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import bayesnorm
from bayesnorm.errors import RunError
from bayesnorm.report import lr_curve, save, scale_noise, training_curves

METHODS = ["none", "batch + projection", "analytic + projection + Bayes"]


def record(epoch: int, method: int = 0) -> dict[str, Any]:
    loss = 2.0 / (epoch + method)
    return {
        "epoch": epoch,
        "step": 10 * epoch,
        "lr": 0.1 * 0.9**epoch,
        "train_loss": loss + 0.1,
        "train_nll": loss,
        "kl": 100.0,
        "train_eval_nll": 0.5 * loss,
        "train_eval_accuracy": 1 - loss / 8,
        "val_nll": 1.5 * loss,
        "val_accuracy": 1 - loss / 4,
        "sigma_over_s": {"features.0": 0.1},
    }


def histories(epochs: int = 12) -> dict[str, list[dict[str, Any]]]:
    return {name: [record(epoch, i) for epoch in range(1, epochs + 1)] for i, name in enumerate(METHODS)}


def drawn(axes: Axes) -> list[list[float]]:
    """The y values of every line."""
    return [[float(y) for y in line.get_ydata()] for line in axes.lines]


def texts(path: Path) -> list[str]:
    """What is written in an SVG."""
    return ["".join(element.itertext()).strip() for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


RATIOS = {"weight": {"features.0": 0.39, "features.2": 0.024}, "analytic": {"features.0": 0.2, "fc": 0.5}}
TRIALS = [
    {"lr": 0.1, "loss": None},
    {"lr": 0.001, "loss": 1.5},
    {"lr": 0.01, "loss": 0.9},
    {"lr": 1.0, "loss": math.inf},
]
FIGURES: dict[str, tuple[Callable[[], Figure], list[str]]] = {
    "training": (
        lambda: training_curves(histories()),
        [*METHODS, "epoch", "training NLL", "validation NLL", "validation accuracy"],
    ),
    "noise": (
        lambda: scale_noise(RATIOS),
        [*RATIOS, "features.0", "features.2", "fc", "layer", "learned noise \N{GREEK SMALL LETTER SIGMA} / s"],
    ),
    "lr": (
        lambda: lr_curve(TRIALS, 0.0123456),
        ["learning rate", "training NLL", "trials", "diverged", "chosen: 0.0123"],
    ),
}


def test_training_curves_show_what_was_recorded() -> None:
    given = histories()
    training, loss, accuracy = training_curves(given).axes

    def of(key: str) -> list[list[float]]:
        return [[entry[key] for entry in history] for history in given.values()]

    solid = [line for line in training.lines if line.get_linestyle() == "-"]
    dashed = [line for line in training.lines if line.get_linestyle() == "--"]
    assert [list(line.get_ydata()) for line in solid] == of("train_nll")
    assert [list(line.get_ydata()) for line in dashed] == of("train_eval_nll")
    assert drawn(loss) == of("val_nll")
    assert drawn(accuracy) == of("val_accuracy")
    assert all(list(line.get_xdata()) == list(range(1, 13)) for line in [*solid, *dashed, *loss.lines, *accuracy.lines])
    assert (training.get_yscale(), loss.get_yscale(), accuracy.get_yscale()) == ("log", "log", "linear")


def test_a_method_has_one_colour_of_its_own() -> None:
    training, loss, accuracy = training_curves(histories()).axes
    colours = [line.get_color() for line in loss.lines]
    assert len(set(colours)) == 3
    assert [line.get_color() for line in training.lines[:3]] == colours
    assert [line.get_color() for line in accuracy.lines] == colours
    assert sorted(line.get_color() for line in training.lines) == sorted(colours * 2)
    many = training_curves({f"method {i}": [record(1), record(2)] for i in range(63)}).axes[1].lines
    assert len({(line.get_color(), line.get_marker()) for line in many}) == 63


def test_last_values_of_all_methods_are_inside_the_axis() -> None:
    given = histories(200)
    axes = training_curves(given).axes[2]
    bottom, top = axes.get_ylim()
    last = [history[-1]["val_accuracy"] for history in given.values()]
    assert bottom < min(last) <= max(last) < top
    assert bottom > 0.9  # not the 50 % of the first epoch
    fallen = {**given, "diverged": [{"epoch": 1, "val_accuracy": 0.9}, {"epoch": 2, "val_accuracy": 0.1}]}
    assert training_curves(fallen).axes[2].get_ylim()[0] < 0.1


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_leaves_a_gap_and_what_was_not_measured_does_not(
    missing: float | None, tmp_path: Path
) -> None:
    given = histories()
    keys = ("train_nll", "train_eval_nll", "val_nll", "val_accuracy")
    given["none"][3].update(dict.fromkeys(keys, missing))
    del given["none"][5]["val_nll"]
    given["none"][7]["val_nll"] = 0.0  # has no logarithm
    figure = training_curves(given)
    assert [i for i, y in enumerate(drawn(figure.axes[0])[0]) if math.isnan(y)] == [3]
    assert [i for i, y in enumerate(drawn(figure.axes[1])[0]) if math.isnan(y)] == [3, 6]
    epochs = [record["epoch"] for record in given["none"]]
    assert list(figure.axes[1].lines[0].get_xdata()) == epochs[:5] + epochs[6:]
    assert [i for i, y in enumerate(drawn(figure.axes[2])[0]) if math.isnan(y)] == [3]
    assert len(save(figure, tmp_path / "gap")) == 2


def test_noise_has_a_line_per_method_and_a_place_per_layer() -> None:
    (axes,) = scale_noise(RATIOS).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["features.0", "features.2", "fc"]
    assert drawn(axes)[0] == pytest.approx([0.39, 0.024, math.nan], nan_ok=True)
    assert drawn(axes)[1] == pytest.approx([0.2, math.nan, 0.5], nan_ok=True)
    assert axes.get_yscale() == "log"


def test_trials_are_ordered_and_diverged_ones_stand_at_the_top() -> None:
    (axes,) = lr_curve(TRIALS, 0.01).axes
    finished, diverged, chosen = axes.lines
    assert list(finished.get_xdata()) == [0.001, 0.01]
    assert list(finished.get_ydata()) == [1.5, 0.9]
    assert list(diverged.get_xdata()) == [0.1, 1.0]
    assert diverged.get_marker() == "x"
    on_screen = diverged.get_transform().transform(diverged.get_xydata())
    assert axes.transAxes.inverted().transform(on_screen)[:, 1] == pytest.approx([0.97, 0.97])
    assert list(chosen.get_xdata()) == [0.01, 0.01]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("name", FIGURES)
def test_files_are_real_and_say_what_they_show(name: str, tmp_path: Path) -> None:
    make, words = FIGURES[name]
    svg, png = save(make(), tmp_path / "new" / "folder" / "figure.v1")
    assert sorted(tmp_path.rglob("*.*")) == sorted([svg, png])
    assert (svg.name, png.name) == ("figure.v1.svg", "figure.v1.png")
    assert set(words) <= set(texts(svg))
    with Image.open(png) as image:
        image.load()
        assert image.format == "PNG"
        assert image.width > 900
        assert image.convert("L").getextrema()[0] < 100  # something is drawn


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_figure_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    make, _ = FIGURES[name]
    first = [path.read_bytes() for path in save(make(), tmp_path / "first")]
    assert [path.read_bytes() for path in save(make(), tmp_path / "second")] == first


@pytest.mark.parametrize("name", FIGURES)
def test_no_two_labels_overlap(name: str) -> None:
    figure = FIGURES[name][0]()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label for label in axis.get_ticklabels() if label.get_text()]
            boxes = [label.get_window_extent(renderer) for label in labels if label.get_rotation() == 0]
            assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    (legend,) = figure.legends
    inside = legend.get_window_extent(renderer)
    assert inside.x0 >= 0
    assert inside.x1 <= figure.bbox.width
    assert not any(inside.overlaps(axes.get_tightbbox(renderer)) for axes in figure.axes)


EMPTY: dict[str, Callable[[], Figure]] = {
    "no methods": lambda: training_curves({}),
    "no epochs": lambda: training_curves({"a": [], "b": []}),
    "one epoch": lambda: training_curves({"a": [record(1)], "b": [record(1)]}),
    "nothing recorded": lambda: training_curves({"a": [{"epoch": 1}, {"epoch": 2}]}),
    "always zero": lambda: training_curves({"a": [{**record(1), "val_accuracy": 0.0, "train_nll": 0.0}]}),
    "no ratios": lambda: scale_noise({}),
    "no layers": lambda: scale_noise({"batch": {}}),
    "one layer": lambda: scale_noise({"batch": {"0": 0.1}}),
    "zero noise": lambda: scale_noise({"batch": {"0": 0.0, "1": math.nan}}),
    "no trials": lambda: lr_curve([], math.nan),
    "one trial": lambda: lr_curve([{"lr": 0.1, "loss": 1.0}], 0.1),
    "one small trial": lambda: lr_curve([{"lr": 0.01, "loss": 2.2463}], 0.01),
    "all diverged": lambda: lr_curve([{"lr": 0.1, "loss": None}, {"lr": 0.2, "loss": math.nan}], 0.1),
    "a loss below zero": lambda: lr_curve([{"lr": 0.1, "loss": -1.0}, {"lr": 0.2, "loss": 1.0}], 0.1),
}


@pytest.mark.parametrize("name", EMPTY)
def test_little_or_no_data(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = EMPTY[name]()
        files = save(figure, tmp_path / "figure")
    assert all(path.stat().st_size > 1000 for path in files)
    assert ("no data" in texts(files[0])) == name.startswith(("no", "zero"))


def test_one_epoch_is_a_visible_point() -> None:
    for axes in training_curves({"a": [record(1)]}).axes:
        assert all(line.get_marker() not in ("", "none", "None") for line in axes.lines)


@pytest.mark.parametrize("name", ["_hidden", "$x_1$", "50 % & <more>", "a\\b"])
def test_any_name_is_shown_as_it_is(name: str, tmp_path: Path) -> None:
    for figure in (training_curves({name: [record(1), record(2)]}), scale_noise({name: {name: 0.1}})):
        svg, _ = save(figure, tmp_path / "figure")
        assert name in [text.strip("\u200b") for text in texts(svg)]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svg, png = save(lr_curve(TRIALS, 0.01), tmp_path / "figure")
    before = svg.read_bytes(), png.read_bytes()

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"figure\.svg could not be written \(No space left on device\)") as raised:
        save(scale_noise(RATIOS), tmp_path / "figure")
    assert "\n" not in str(raised.value)
    assert (svg.read_bytes(), png.read_bytes()) == before
    assert sorted(tmp_path.iterdir()) == sorted([svg, png])


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"figure\.svg could not be written"):
        save(scale_noise(RATIOS), tmp_path / "file" / "figure")


def test_importing_is_cheap_and_pyplot_is_never_used(tmp_path: Path) -> None:
    source = Path(bayesnorm.__file__).parent.parent
    script = f"""
import sys
sys.path.insert(0, {str(source)!r})
import bayesnorm.report
assert "matplotlib" not in sys.modules
bayesnorm.report.save(bayesnorm.report.scale_noise({{"a": {{"0": 0.1}}}}), {str(tmp_path / "figure")!r})
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == 2
