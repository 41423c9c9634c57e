"""Every figure and table of the paper with the smallest preset: what is written, drawn, printed, and trained once."""

import itertools
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from bayesnorm.layers import norm_layers
from bayesnorm.paper import EXHIBITS, PRESETS, Lab, Wanted, reproduce
from bayesnorm.paper.curves import final
from bayesnorm.paper.reproduce import comparison, files_of
from bayesnorm.paper.rows import run_of
from bayesnorm.paper.wanted import BATCH
from bayesnorm.scales import NoiseScale
from bayesnorm.train.methods import TABLE
from bayesnorm.train.record import record

IDS = [*(f"fig{i}" for i in range(1, 10)), "table1", "noise", *(f"figA{i}" for i in range(1, 5))]
PRESET = PRESETS["smoke"]
Document = dict[str, Any]


def quiet(names: Any) -> Any:
    return nullcontext(dict.fromkeys(names, lambda event: None))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """All ids, reproduced once."""
    made = Lab(tmp_path_factory.mktemp("paper"), PRESET, quiet)
    made.train([run for exhibit in EXHIBITS.values() for run in exhibit.wanted(PRESET)])
    for exhibit in EXHIBITS.values():
        reproduce(exhibit, made)
    return made


def _strict(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def document(lab: Lab) -> Callable[[str], Document]:
    """What is in ``ID.json``."""

    def read(name: str) -> Document:
        found: Document = json.loads((lab.out / f"{name}.json").read_text(), parse_constant=_strict)
        return found

    return read


@pytest.fixture(scope="module")
def drawn(document: Callable[[str], Document]) -> Callable[[str], Figure]:
    """The figure that ``ID.json`` gives."""
    return lambda name: EXHIBITS[name].draw(document(name)["measured"])


def wanted() -> list[Wanted]:
    found = [run for exhibit in EXHIBITS.values() for run in exhibit.wanted(PRESET)]
    return list(dict.fromkeys([*found, *itertools.chain.from_iterable(run.needs for run in found)]))


def test_everything_that_the_paper_reports_has_an_id() -> None:
    assert sorted(EXHIBITS) == sorted(IDS)
    assert all(name == exhibit.id for name, exhibit in EXHIBITS.items())


# What is written.


@pytest.mark.parametrize("name", IDS)
def test_picture(lab: Lab, name: str) -> None:
    assert all(path.is_file() for path in files_of(lab.out, name))
    root = ElementTree.parse(lab.out / f"{name}.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {text.strip() for element in root.iter() for text in (element.text or "",)}
    assert len(texts) > 3
    with Image.open(lab.out / f"{name}.png") as image:
        image.load()
        assert image.width > 800
        assert image.height > 500
        colours = image.convert("RGB").getcolors(1 << 24) or []
    background = max(count for count, _ in colours) / (image.width * image.height)
    assert len(colours) > 20
    assert background < 0.99


def test_nothing_else_is_written(lab: Lab) -> None:
    expected = {path.name for name in IDS for path in files_of(lab.out, name)}
    assert {path.name for path in lab.out.iterdir()} == {*expected, "runs"}


@pytest.mark.parametrize("name", IDS)
def test_document(lab: Lab, document: Callable[[str], Document], name: str) -> None:
    found, exhibit = document(name), EXHIBITS[name]
    assert (found["id"], found["title"], found["claim"]) == (name, exhibit.title, exhibit.claim)
    assert (found["preset"], found["protocol"]) == ("smoke", PRESET.about)
    assert found["paper"] == exhibit.paper
    assert found["versions"]["torch"]
    assert list(found["runs"]) == [run.name(PRESET) for run in exhibit.wanted(PRESET)]
    for folder, about in found["runs"].items():
        result = json.loads((lab.out / "runs" / folder / "result.json").read_text())
        config = json.loads((lab.out / "runs" / folder / "config.json").read_text())
        assert len(about["digest"]) == len(about["config_digest"]) == 64
        assert (about["seed"], about["batch"]) == (config["config"]["seed"], config["config"]["batch"])
        assert about["torch"] == config["environment"]["versions"]["torch"]
        assert {key: about[key] for key in ("epochs", "lr", "digest")} == {
            key: result[key] for key in ("epochs", "lr", "digest")
        }


@pytest.fixture(scope="module")
def records(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lab that has the records of all runs, and no network."""
    folder = tmp_path_factory.mktemp("records")
    record(list((lab.out / "runs").iterdir()), folder)
    return Lab(tmp_path_factory.mktemp("again"), PRESET, quiet, runs=folder)


@pytest.mark.parametrize("name", IDS)
def test_records_give_the_same_figure(records: Lab, lab: Lab, document: Callable[[str], Document], name: str) -> None:
    found = json.loads(json.dumps(reproduce(EXHIBITS[name], records)))
    assert _without_commands(found) == _without_commands(document(name))
    assert (records.out / f"{name}.svg").read_bytes() == (lab.out / f"{name}.svg").read_bytes()


def _without_commands(document: Document) -> Document:
    """A record calls the program by its name."""
    runs = {name: {**about, "command": ""} for name, about in document["runs"].items()}
    return {**document, "runs": runs, "rows": [{**row, "commands": ""} for row in document.get("rows", [])]}


@pytest.mark.parametrize("name", IDS)
def test_measured_numbers_are_numbers(document: Callable[[str], Document], name: str) -> None:
    numbers = document(name)["measured"]["numbers"]
    words = {"best by validation loss"}
    assert numbers
    assert all(isinstance(numbers[key], str) for key in words & set(numbers))
    assert all(math.isfinite(value) for key, value in numbers.items() if key not in words)


@pytest.mark.parametrize("name", IDS)
def test_what_the_paper_prints_is_measured_under_the_same_name(document: Callable[[str], Document], name: str) -> None:
    found = document(name)
    measured, paper = found["measured"]["numbers"], found["paper"]
    assert all("(quoted)" in key for key in set(paper) - set(measured))
    rows = comparison(found)
    assert [key for key, _, _ in rows] == list(dict.fromkeys([*measured, *paper]))
    assert all((value, printed) == (measured.get(key), paper.get(key)) for key, value, printed in rows)


PRINTED = {
    "fig1": [0.93],
    "fig2": [0.93, 0.003, 0.924, 0.003],
    "fig3": [0.31, 0.22, 0.9, 0.75, 0.7, 0.45],
    "fig4": [-1] * 9,
    "fig5": [],
    "fig6": [0.4, 0.25],
    "fig7": [],
    "table1": [
        *(0.907, 1.45, 0.927, 0.34, 0.941, 0.29, 0.935, 0.48, 0.27, 0.24, 0.944, 0.38, 0.22, 0.20),
        *(0.9088, 0.327, 0.919, 0.37, 0.935, 0.936, 0.96),
    ],
    "noise": [
        *(0.39, 0.34, 0.18, 0.29, 0.27, 0.29, 0.31, 0.61, 0.024),
        *(0.05, 0.03, 0.026, 0.023, 0.02, 0.026, 0.041, 0.045, 0.071),
    ],
    "fig8": [14, 6, 512],
}
"""Numbers in the paper's captions, tables and text, in its order."""


@pytest.mark.parametrize("name", IDS)
def test_printed_numbers_are_those_of_the_paper(name: str) -> None:
    numbers = [value for value in EXHIBITS[name].paper.values() if not isinstance(value, str)]
    assert numbers == PRINTED.get(name, [])


# What is drawn.

LOSS, ACCURACY = ("training loss", "log"), ("validation accuracy", "linear")
VALIDATION = ("validation loss", "log")
Panel = tuple[str, str, int, int]
"""Label and scale upwards, lines, shades."""
PANELS: dict[str, list[Panel]] = {
    "fig1": [(*LOSS, 3, 0), (*ACCURACY, 2, 2)],
    "fig2": [(*LOSS, 4, 0), (*VALIDATION, 2, 2)],
    "fig3": [(*ACCURACY, 2, 2)] * 3,
    "fig5": [(*ACCURACY, 2, 2)] * 2 + [(*VALIDATION, 2, 2)] * 2,
    "fig6": [(*LOSS, 4, 0), (*VALIDATION, 3, 3), (*ACCURACY, 3, 3)],
    "fig7": [(*LOSS, 4, 0), (*VALIDATION, 3, 3), (*ACCURACY, 3, 3)],
    "fig9": [(*VALIDATION, 9, 9), (*ACCURACY, 9, 9)],
    "figA1": [(*LOSS, 3, 0), (*VALIDATION, 3, 3)] * 2,
    "figA2": [(*ACCURACY, 3, 1)] * 2,
}


@pytest.mark.parametrize("name", PANELS)
def test_training_curves(drawn: Callable[[str], Figure], name: str) -> None:
    axes = drawn(name).axes
    found = [
        (
            place.get_ylabel(),
            place.get_yscale(),
            len(place.lines),
            sum(isinstance(c, PolyCollection) for c in place.collections),
        )
        for place in axes
    ]
    assert found == PANELS[name]
    assert all((place.get_xlabel(), place.get_xscale()) == ("epoch", "linear") for place in axes)
    epochs = [list(line.get_xdata()) for place in axes for line in place.lines]
    assert all(values == [1, 2, 3, 4] for values in epochs)


def test_a_short_run_is_drawn_as_it_was_recorded(lab: Lab, drawn: Callable[[str], Figure]) -> None:
    """Four epochs are too few for running means."""
    history = lab.history(BATCH)
    (_, bn, evaluated), (_, accuracy) = (place.lines for place in drawn("fig1").axes)
    assert list(bn.get_ydata()) == [record["train_nll"] for record in history]
    assert list(evaluated.get_ydata()) == [record["train_eval_nll"] for record in history]
    assert evaluated.is_dashed()
    assert list(accuracy.get_ydata()) == [record["val_accuracy"] for record in history]


LEGENDS = {
    "fig1": ["standard", "BN", "BN Eval"],
    "fig2": ["normalization batch 32", "normalization batch 128"],
    "fig3": ["free", "projected"],
    "fig4": [*(f"layer {i}" for i in range(1, 10)), "slope -1"],
    "fig5": ["no noise", "noise of BN"],
    "fig6": ["baseline", "projection", "projection + Bayes", "with mean parameters"],
    "fig7": ["baseline", "projection", "projection + Bayes", "with mean parameters"],
    "fig9": [
        *("none", "batch", "batch+projection", "weight", "weight+projection", "weight+projection+bayes"),
        *("analytic", "analytic+projection", "analytic+projection+bayes"),
    ],
    "figA1": ["batch 16", "batch 32", "batch 128"],
    "figA2": ["seed 0", "seed 1", "seed 2"],
    "figA3": list(TABLE),
}


@pytest.mark.parametrize("name", LEGENDS)
def test_legend(drawn: Callable[[str], Figure], name: str) -> None:
    (legend,) = drawn(name).legends
    assert [text.get_text() for text in legend.get_texts()] == LEGENDS[name]


def test_titles_of_panels(drawn: Callable[[str], Figure]) -> None:
    def titles(name: str) -> list[str]:
        return [place.get_title() for place in drawn(name).axes]

    assert titles("fig3") == ["BN", "Weight Norm", "Analytic Norm"]
    assert titles("fig5")[:2] == ["Weight Normalization", "Analytic Normalization"]
    assert titles("fig8") == ["image", "segmentation", "deformation"]
    assert titles("figA1") == ["standard training"] * 2 + ["batch normalization"] * 2
    assert titles("figA2") == ["Batch normalization", "Analytic normalization, Bayes"]


def test_triangles_are_the_loss_with_mean_parameters(lab: Lab, drawn: Callable[[str], Figure]) -> None:
    for name, norm in (("fig6", "weight"), ("fig7", "analytic")):
        *solid, triangles = drawn(name).axes[0].lines
        history = lab.history(Wanted(f"{norm}+projection+bayes"))
        assert triangles.get_marker() == "^"
        assert list(triangles.get_ydata()) == [record["train_eval_nll"] for record in history]
        assert [line.get_marker() for line in solid] == ["none"] * 3
        assert list(solid[-1].get_ydata()) == [record["train_nll"] for record in history]


def test_axes_of_the_noise_model(drawn: Callable[[str], Figure], document: Callable[[str], Document]) -> None:
    left, middle, right = drawn("fig4").axes
    assert (left.get_xscale(), left.get_yscale()) == ("linear", "linear")
    assert all((place.get_xscale(), place.get_yscale()) == ("log", "log") for place in (middle, right))
    assert (middle.get_xlabel(), middle.get_ylabel()) == ("batch size k", "variance of BN output")
    assert (right.get_xlabel(), right.get_ylabel()) == ("spatial size z", "k x variance")
    assert len(middle.lines) == len(right.lines) == 10
    assert len({line.get_color() for line in middle.lines}) == 10
    measured = document("fig4")["measured"]
    assert [list(line.get_ydata()) for line in middle.lines[:9]] == measured["variance"]
    assert [line.get_xdata()[0] for line in right.lines[:9]] == measured["positions"]
    assert "n = 128" in left.get_title()
    model, fewer = left.lines
    assert not model.is_dashed()
    assert fewer.is_dashed()
    assert fewer.get_label() == f"model of {measured['independent']['count']:.0f} values"
    area = sum(patch.get_width() * patch.get_height() for patch in left.patches)
    assert area == pytest.approx(1.0), "a density"


def test_axes_of_learned_noise(drawn: Callable[[str], Figure], document: Callable[[str], Document]) -> None:
    left, right = drawn("noise").axes
    assert left.get_yscale() == right.get_yscale() == "log"
    assert left.get_xlabel() == right.get_xlabel() == "layer"
    measured, paper = document("noise")["measured"], document("noise")["paper"]
    lines = [list(line.get_ydata()) for line in left.lines[:4]]
    assert lines[0::2] == [measured["learned"], measured["trained"]["sigma_u"]]
    assert [value for line in lines[1::2] for value in line] == list(paper.values())[:18]
    assert [list(line.get_ydata()) for line in right.lines[:2]] == list(measured["growth"].values())


def test_axes_of_rejection_and_robustness(drawn: Callable[[str], Figure], document: Callable[[str], Document]) -> None:
    (axes,) = drawn("figA3").axes
    assert len(axes.lines) == 5
    assert (axes.get_ylabel(), axes.get_xscale(), axes.get_yscale()) == ("error", "linear", "linear")
    figure, numbers = drawn("figA4"), document("figA4")["measured"]["numbers"]
    assert [place.get_xlabel() for place in figure.axes] == [
        "std of Gaussian noise",
        "size of the gradient-sign attack",
    ]
    assert [len(place.lines) for place in figure.axes] == [5, 5]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        f"{method} ({numbers[f'{method}, accuracy undisturbed']:.1%})" for method in TABLE
    ]


def test_pictures_of_the_cell_data(drawn: Callable[[str], Figure]) -> None:
    images = [place.images[0].get_array() for place in drawn("fig8").axes]
    assert all(image.min() == 0 and image.max() == 255 for image in images)
    assert set(images[1].flatten().tolist()) == {0, 255}


def test_the_table_shows_measured_numbers_before_those_of_the_paper(
    drawn: Callable[[str], Figure], document: Callable[[str], Document]
) -> None:
    (axes,) = drawn("table1").axes
    cells = {place: cell.get_text().get_text() for place, cell in axes.tables[0].get_celld().items()}
    label = "Analytic normalization, projection, Bayes"
    measured = document("table1")["measured"]
    row, seeds = measured["rows"][label], measured["seeds"][label]
    assert cells[5, -1] == (label if seeds == 1 else f"{label} ({seeds} seeds)")
    assert [cells[5, column] for column in range(4)] == [
        f"{row['accuracy']:.2%} (94.40%)",
        f"{row['NLL single']:.3f} (0.380)",
        f"{row['NLL MC-10']:.3f} (0.220)",
        f"{row['NLL MC-30']:.3f} (0.200)",
    ]
    assert [cells[6, column] for column in range(4)] == ["(90.88%)", "-", "-", "(0.327)"]
    assert max(line for line, _ in cells) == 10


# What is trained.


def _starts(folder: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]


def test_runs_are_shared_and_each_was_started_once(lab: Lab) -> None:
    folders = {path.name: path for path in (lab.out / "runs").iterdir()}
    assert set(folders) == {run.name(PRESET) for run in wanted()}
    assert all(_starts(folder) == ["start", "finish"] for folder in folders.values())
    asked = sum(len(exhibit.wanted(PRESET)) for exhibit in EXHIBITS.values())
    assert len(folders) == 29 < asked


def test_again_nothing_is_trained_and_the_same_is_written(lab: Lab) -> None:
    def files() -> dict[str, tuple[bytes, int]]:
        paths = [path for path in sorted(lab.out.rglob("*")) if path.is_file() and path.name != ".lock"]
        inside = {path for path in paths if "runs" in path.relative_to(lab.out).parts}
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns if path in inside else 0) for path in paths}

    def refused(names: Any) -> Any:
        raise AssertionError(f"{names} are trained again")

    before = files()
    again = Lab(lab.out, PRESET, refused)
    for exhibit in EXHIBITS.values():
        reproduce(exhibit, again)
    after = files()
    assert [name for name in {**before, **after} if before.get(name) != after.get(name)] == []


def test_the_variance_falls_as_one_over_the_batch_size_in_all_layers(document: Callable[[str], Document]) -> None:
    measured = document("fig4")["measured"]
    slopes = [measured["numbers"][f"slope of the variance against batch size, layer {i}"] for i in range(1, 10)]
    assert slopes == [pytest.approx(-1, abs=0.1)] * 9
    assert measured["positions"] == [64, 64, 16, 16, 16, 4, 4, 4, 4]
    assert measured["sizes"] == list(PRESET.noise_sizes)


def test_the_test_of_the_law_is_reported(document: Callable[[str], Document]) -> None:
    measured = document("fig4")["measured"]
    unit, numbers = measured["unit"], measured["numbers"]
    assert (unit["n"], len(unit["values"])) == (128, PRESET.noise_batches)
    assert numbers["KS test, unit of layer 7, p"] == unit["p"]
    assert 0 <= unit["p"] <= 1
    assert numbers["KS test, independent normal input, p"] > 1e-3
    fewer = measured["independent"]
    assert numbers["part of the values that count as independent, unit of layer 7"] == pytest.approx(
        fewer["count"] / 128
    )
    assert numbers["KS test with so many values, unit of layer 7, p"] == fewer["p"]
    assert len(measured["accepted"]) == 9
    assert numbers["KS test, units that pass at 1%, mean over layers"] == pytest.approx(sum(measured["accepted"]) / 9)


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_injected_noise_is_that_of_the_batch_normalized_network(lab: Lab, norm: str) -> None:
    noise = lab.bn_noise(BATCH)["trained"]
    run = Wanted(f"{norm}+projection+noise", noise_of=BATCH)
    recipe = lab.folder(run).about()["recipe"]
    assert recipe["scale"] == "noise"
    layers = norm_layers(lab.trained(run).net).values()
    assert len(layers) == 9
    for field in ("sigma_u", "sigma_v"):
        assert recipe[field] == noise[field]
        assert len(set(noise[field])) == 9
        for layer, value in zip(layers, noise[field], strict=True):
            assert isinstance(layer.scale, NoiseScale)
            assert getattr(layer.scale, field).flatten().tolist() == pytest.approx(
                [value] * getattr(layer.scale, field).numel()
            )


def _about(lab: Lab, run: Wanted) -> Document:
    return lab.folder(run).about()


def test_only_the_normalization_batch_differs(lab: Lab) -> None:
    small, large = EXHIBITS["fig2"].wanted(PRESET)
    configs = [_about(lab, run)["config"] for run in (small, large)]
    assert [config["norm_batch"] for config in configs] == [None, PRESET.norm_batch]
    assert [config["lr"] for config in configs] == [(lab.folder(small).result() or {})["lr"]] * 2
    assert {**configs[0], "norm_batch": 0} == {**configs[1], "norm_batch": 0}
    assert _about(lab, small)["recipe"] == _about(lab, large)["recipe"]
    assert _about(lab, small)["data"] == _about(lab, large)["data"]


def test_only_the_seed_differs(lab: Lab) -> None:
    runs = EXHIBITS["figA2"].wanted(PRESET)
    for some in (runs[:3], runs[3:]):
        abouts = [_about(lab, run) for run in some]
        assert [about["config"]["seed"] for about in abouts] == list(PRESET.seeds)
        assert len({str({**about["config"], "seed": 0}) for about in abouts}) == 1
        assert len({str(about["recipe"]) for about in abouts}) == 1, "one split"
        assert len({(lab.folder(run).result() or {})["lr"] for run in some}) == 1
        assert len({(lab.folder(run).result() or {})["digest"] for run in some}) == 3


def test_only_the_batch_differs(lab: Lab, document: Callable[[str], Document]) -> None:
    for method in ("none", "batch"):
        runs = [run for run in EXHIBITS["figA1"].wanted(PRESET) if run.method == method]
        assert [_about(lab, run)["config"]["batch"] for run in runs] == list(PRESET.batch_sizes)
        for size, run in zip(PRESET.batch_sizes, runs, strict=True):
            numbers = document("figA1")["measured"]["numbers"]
            assert numbers[f"{method}, batch {size}, validation loss"] == lab.history(run)[-1]["val_nll"]


# What is printed.


def test_the_table_has_the_numbers_of_the_evaluations(lab: Lab, document: Callable[[str], Document]) -> None:
    measured = document("table1")["measured"]
    assert len(measured["rows"]) == 5
    for method, (label, row) in zip(TABLE, measured["rows"].items(), strict=True):
        runs = [run_of(method, seed) for seed in range(measured["seeds"][label])]
        metrics = [lab.test(run)["metrics"] for run in runs]
        assert row["accuracy"] == pytest.approx(sum(m["single"]["accuracy"] for m in metrics) / len(runs))
        assert row["NLL single"] == pytest.approx(sum(m["single"]["nll"] for m in metrics) / len(runs))
        assert all(("mc30" in m) == ("bayes" in method) for m in metrics)
        for column, way in (("NLL MC-10", "mc10"), ("NLL MC-30", "mc30"), ("NLL moments", "moments")):
            if "bayes" in method:
                assert row[column] == pytest.approx(sum(m[way]["nll"] for m in metrics) / len(runs))
            else:
                assert row[column] is None
        printed = {key: value for key, value in measured["numbers"].items() if key.startswith(f"{label}, ")}
        assert printed == {f"{label}, {name}": value for name, value in row.items() if value is not None}


def test_curves_end_in_the_printed_numbers(lab: Lab, document: Callable[[str], Document]) -> None:
    for name, panels in (("fig3", ("batch", "weight", "analytic")), ("fig5", ("weight", "analytic"))):
        measured = document(name)["measured"]
        for norm in panels:
            for label, curve in measured["panels"][norm].items():
                assert measured["numbers"][f"{norm}, {label}, validation loss"] == final(curve, "val_nll")
                assert measured["numbers"][f"{norm}, {label}, validation accuracy"] == final(curve, "val_accuracy")
    history = lab.history(BATCH)[-1]
    numbers = document("fig1")["measured"]["numbers"]
    assert numbers["BN, validation accuracy"] == history["val_accuracy"]
    ratio = history["train_nll"] / history["train_eval_nll"]
    assert numbers["BN, training loss, train mode / eval mode"] == pytest.approx(ratio)


@pytest.mark.parametrize(("name", "norm"), [("fig6", "weight"), ("fig7", "analytic")])
def test_the_monte_carlo_loss_is_that_of_the_validation_set(
    lab: Lab, document: Callable[[str], Document], name: str, norm: str
) -> None:
    stored = lab.folder(Wanted(f"{norm}+projection+bayes")).read("evaluation-val.json") or {}
    numbers = document(name)["measured"]["numbers"]
    assert (stored["split"], stored["samples"]) == ("val", 10)
    assert numbers["projection + Bayes, validation loss by MC-10"] == stored["metrics"]["mc10"]["nll"]
    history = lab.history(Wanted(f"{norm}+projection+bayes"))
    assert numbers["projection + Bayes, validation loss"] == history[-1]["val_nll"]
    assert stored["metrics"]["single"]["nll"] == pytest.approx(history[-1]["val_nll"], rel=1e-5), "mean parameters"


def test_learned_noise_and_its_growth(lab: Lab, document: Callable[[str], Document]) -> None:
    measured, noise = document("noise")["measured"], lab.bn_noise(BATCH)
    assert measured["learned"] == list(lab.test(Wanted("analytic+projection+bayes"))["sigma_over_s"].values())
    assert (measured["trained"], measured["initial"]) == (noise["trained"], noise["initial"])
    assert measured["initial"] != measured["trained"]
    for letter, key in (("U", "sigma_u"), ("V", "sigma_v")):
        ratios = [new / old for old, new in zip(noise["initial"][key], noise["trained"][key], strict=True)]
        assert measured["numbers"][f"growth of sigma_{letter}, last layer"] == ratios[-1]
        assert measured["numbers"][f"growth of sigma_{letter}, mean over layers"] == pytest.approx(sum(ratios) / 9)


def test_rejection_and_robustness_are_those_of_the_documents(lab: Lab, document: Callable[[str], Document]) -> None:
    rejected, disturbed = (document(name)["measured"]["numbers"] for name in ("figA3", "figA4"))
    for method in TABLE:
        stored = lab.test(Wanted(method))
        curve = stored["coverage"]["single"]["entropy"]
        assert document("figA3")["measured"]["curves"][method] == curve
        index = min(i for i, part in enumerate(curve["coverage"]) if part >= 0.6)
        assert rejected[f"{method}, error at a coverage of 60%"] == curve["risk"][index]
        assert rejected[f"{method}, AURC"] == stored["metrics"]["single"]["aurc"]
        assert disturbed[f"{method}, accuracy undisturbed"] == pytest.approx(stored["metrics"]["single"]["accuracy"])
        for kind in ("noise", "attack"):
            points = lab.robustness(Wanted(method))[kind]
            assert points[0]["strength"] == 0
            assert disturbed[f"{method}, accuracy at the strongest {kind}"] == points[-1]["accuracy"]
    assert disturbed["images"] == 359


def test_the_best_on_the_cells_has_the_lowest_loss(document: Callable[[str], Document]) -> None:
    numbers = document("fig9")["measured"]["numbers"]
    losses = {
        key.removesuffix(", validation loss"): v for key, v in numbers.items() if key.endswith(", validation loss")
    }
    assert len(losses) == 9
    assert losses[numbers["best by validation loss"]] == min(losses.values())


def test_the_cell_data_is_counted(lab: Lab, document: Callable[[str], Document]) -> None:
    numbers, data = document("fig8")["measured"]["numbers"], lab.data(cells=True)
    assert numbers["images for training"] == len(data.train)
    assert numbers["images for validation"] == len(data.val)
    assert numbers["side of an image, pixels"] == data.image_size[-1]
    assert 0.05 < numbers["fraction of foreground"] < 0.5
