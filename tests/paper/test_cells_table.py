"""The cell segmentation from end to end on drawn cells: trained, evaluated, tabulated and shown, in seconds."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn_cells import draw_cells
from scipy.stats import ttest_rel

from bayesnorm.cli import main
from bayesnorm.errors import RunError
from bayesnorm.paper.cells_table import BEST, cells_table, paired_p
from bayesnorm.train.durable import sealed
from bayesnorm.train.environment import typed
from bayesnorm.train.methods import settings_of
from bayesnorm.train.run_folder import RunFolder

METHODS = ("batch+projection", BEST)
SPLITS = (0, 1, 2)
Document = dict[str, Any]


def train(cells: Path, out: Path, method: str, *more: object) -> int:
    settings = settings_of(method)
    chosen = ["--norm", settings["norm"], "--scale", settings["scale"], "--project" if settings["project"] else ""]
    words = ["train", "--data", "cells", "--dir", cells, *chosen, "--width", 0.125, "--lr", 0.003, "--out", out, *more]
    return main([str(word) for word in words if word != ""])


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_cells(tmp_path_factory.mktemp("cells"), frames=3, side=32)


@pytest.fixture(scope="module")
def runs(cells: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on three splits, and each on the clean split, two epochs of batches of one image."""
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for split in (*SPLITS, "01-02"):
            chosen = ("--cell-split", split) if split == "01-02" else ("--split-seed", split)
            assert train(cells, root / f"{method}-{split}", method, "--epochs", 2, "--batch", 1, *chosen) == 0
    return root


@pytest.fixture(scope="module")
def document(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Document:
    out = tmp_path_factory.mktemp("results") / "cells" / "table.json"
    assert main(["cells-table", *(str(path) for path in sorted(runs.iterdir())), "-o", str(out)]) == 0
    found: Document = json.loads(out.read_text())
    return found


def row_of(document: Document, method: str, kind: str = "random") -> Document:
    (found,) = [row for row in document["rows"] if (row["method"], row["split_kind"]) == (method, kind)]
    return dict(found)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_has_a_number_for_every_split(document: Document, runs: Path, method: str) -> None:
    row = row_of(document, method)
    assert (row["splits"], row["epochs"], row["batch"]) == ([0, 1, 2], 2, 1)
    for index, split in enumerate(SPLITS):
        folder = RunFolder(runs / f"{method}-{split}")
        metrics = (folder.read("evaluation-test.json") or {})["metrics"]
        for name in ("nll", "accuracy", "iou", "dice", "seg", "ece", "aurc"):
            assert row[name][index] == metrics["single"][name]
        for count in (10, 30):
            assert row[f"nll_mc{count}"][index] == metrics.get(f"mc{count}", {}).get("nll")
        assert row["state_digests"][index] == (folder.result() or {})["digest"]
    assert (None in row["nll_mc30"]) == (method != BEST)
    assert len(set(row["config_digests"])) == 3
    about = [RunFolder(runs / f"{method}-{split}").about() for split in SPLITS]
    assert row["commands"] == [typed(each["environment"]["command"]) for each in about]


def test_the_clean_split_stands_apart(document: Document) -> None:
    for method in METHODS:
        row = row_of(document, method, "01-02")
        assert row["splits"] == ["01-02"]
        assert len(row["nll"]) == 1
    assert len(document["rows"]) == 4


def test_methods_are_compared_split_by_split(document: Document) -> None:
    ours, theirs = row_of(document, BEST), row_of(document, "batch+projection")
    random = {row["by"]: row for row in document["comparisons"] if row["split_kind"] == "random"}
    for by, key in (("single", "nll"), ("best", "nll_mc30")):
        found = random[by]
        assert (found["method"], found["than"], found["splits"]) == (BEST, "batch+projection", [0, 1, 2])
        means = statistics.fmean(ours[key]), statistics.fmean(theirs["nll"])
        assert found["difference"] == pytest.approx(means[0] - means[1])
        assert found["p"] == pytest.approx(ttest_rel(ours[key], theirs["nll"]).pvalue)
    assert {row["p"] for row in document["comparisons"] if row["split_kind"] == "01-02"} == {None}


def changed(run: Path, target: Path, part: str, **settings: object) -> Path:
    """A copy of a run that was trained with other settings, as its configuration has it."""
    copy = broken(lambda path: None, run, target)
    about = RunFolder(copy).about()
    about[part] |= settings
    (copy / "config.json").write_bytes(sealed(about))
    return copy


@pytest.mark.parametrize(
    ("part", "setting", "value"),
    [
        *(("config", name, value) for name, value in (("kl_factor", 1.0), ("clip", 3.0), ("warmup_steps", 7))),
        *(("config", name, value) for name, value in (("variance_step", 5.0), ("optimizer", "sgd"))),
        *(("config", name, value) for name, value in (("decay_epochs", 9.0),)),
        *(("recipe", name, value) for name, value in (("first_layer", "patch"), ("sigma_init", 0.3), ("prior", 1.0))),
        *(("recipe", name, value) for name, value in (("final_activation", True), ("augment", False))),
    ],
)
def test_runs_that_were_trained_differently_are_rows_of_their_own(
    runs: Path, tmp_path: Path, part: str, setting: str, value: object
) -> None:
    """On the same split as another, and on one that the other has not."""
    for split in (0, 1):
        other = changed(runs / f"{BEST}-{split}", tmp_path / f"{split}", part, **{setting: value})
        rows = cells_table([runs / f"{BEST}-0", other])["rows"]
        assert [row["splits"] for row in rows] == [[0], [split]]
        assert [set(row["apart"]) for row in rows] == [{setting}] * 2
        assert rows[1]["apart"] == {setting: value} == {setting: rows[1]["settings"][setting]}


def test_seeds_folder_and_learning_rate_may_differ_in_a_row(runs: Path, tmp_path: Path) -> None:
    """And how it was found, and what was looked at on the way."""
    search = {"lr_trials": 3, "lr_epochs": 7, "lr_low": 1e-4, "lr_high": 0.5, "lr_anneal": True}
    looks = {"eval_every": 1, "train_eval": 2, "checkpoint_seconds": 1.0}
    other = changed(runs / f"{BEST}-1", tmp_path / "lr", "config", lr=0.5, seed=3, **search, **looks)
    other = changed(other, tmp_path / "folder", "recipe", directory="elsewhere")
    (row,) = cells_table([runs / f"{BEST}-0", other])["rows"]
    assert (row["splits"], row["seeds"], row["apart"]) == ([0, 1], [0, 3], {})


def test_a_whole_number_is_the_same_with_and_without_a_point(runs: Path, tmp_path: Path) -> None:
    """A file of a fleet may have either."""
    other = changed(runs / f"{BEST}-1", tmp_path / "whole", "config", clip=1)
    (row,) = cells_table([runs / f"{BEST}-0", other])["rows"]
    assert (row["splits"], row["settings"]["clip"]) == ([0, 1], 1.0)


def test_only_methods_that_were_trained_alike_are_compared(runs: Path, tmp_path: Path) -> None:
    """What has no effect on one of them does not count."""
    plain = runs / "batch+projection-0"
    clipped = changed(runs / f"{BEST}-0", tmp_path / "clipped", "config", clip=3.0)
    assert cells_table([plain, clipped])["comparisons"] == []
    sharper = changed(runs / f"{BEST}-0", tmp_path / "sharper", "config", kl_factor=1.0)
    found = cells_table([plain, runs / f"{BEST}-0", sharper])["comparisons"]
    assert [(row["than"], row["apart"]) for row in found if row["than"] != BEST] == [
        ("batch+projection", {"kl_factor": factor}) for factor in (0.1, 0.1, 1.0, 1.0)
    ]


def test_posteriors_of_one_method_are_compared_too(runs: Path, tmp_path: Path) -> None:
    """With each other, and not where anything else differs."""
    one = runs / f"{BEST}-0"
    sharper = changed(one, tmp_path / "sharper", "config", kl_factor=1.0)
    clipped = changed(one, tmp_path / "clipped", "config", clip=3.0)
    found = cells_table([one, sharper, clipped])["comparisons"]
    assert [(row["method"], row["than"], row["by"]) for row in found] == [(BEST, BEST, by) for by in ("single", "best")]
    assert {(row["apart"]["kl_factor"], row["than_apart"]["kl_factor"]) for row in found} == {(0.1, 1.0)}


def test_seeds_of_one_split_are_paired_with_those_of_another_method(runs: Path, tmp_path: Path) -> None:
    paths = [
        changed(runs / f"{method}-01-02", tmp_path / f"{method}{seed}", "config", seed=seed)
        for method in METHODS
        for seed in (1, 0)
    ]
    lone = changed(runs / f"{BEST}-01-02", tmp_path / "lone", "config", seed=2)
    document = cells_table([*paths, lone])
    row = row_of(document, BEST, "01-02")
    assert (row["splits"], row["seeds"]) == (["01-02"] * 3, [0, 1, 2])
    assert {(tuple(row["splits"]), tuple(row["seeds"])) for row in document["comparisons"]} == {
        (("01-02", "01-02"), (0, 1))
    }
    again = changed(lone, tmp_path / "again", "config", clip=1)
    with pytest.raises(RunError, match=r"again: a second run of analytic.* on split 01-02, seed 2"):
        cells_table([lone, again])


def test_the_printed_table_says_what_tells_rows_apart(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the comparisons it has those with a p value: two splits are needed for one."""
    splits = [runs / f"{BEST}-{split}" for split in (0, 1)]
    others = [changed(run, tmp_path / f"{index}", "config", kl_factor=1.0) for index, run in enumerate(splits)]
    metrics = RunFolder(others[0]).read("evaluation-test.json") or {}
    for way in ("single", "mc30"):
        metrics["metrics"][way]["nll"] += 0.1
    (others[0] / "evaluation-test.json").write_bytes(sealed(metrics))
    for count in (1, 2):
        paths = [str(path) for path in (*splits[:count], *others[:count])]
        assert main(["cells-table", *paths, "-o", str(tmp_path / "table.json")]) == 0
        printed = capsys.readouterr().out
        words = [word for word in printed.split() if word.startswith("kl_factor")]
        assert words == count * ["kl_factor=0.1", "kl_factor=1.0"]
        assert printed.count("-0.0500") == (2 if count == 2 else 0)
        assert ("minus that of another" in printed) == (count == 2)


def test_no_p_value_without_two_differences_that_differ() -> None:
    assert paired_p([]) is paired_p([0.1]) is paired_p([0.1, 0.1]) is None


def broken(change: Callable[[Path], None], source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    change(target)
    return target


def test_runs_that_do_not_belong_are_named(runs: Path, tmp_path: Path) -> None:
    one = runs / f"{BEST}-0"
    with pytest.raises(RunError, match="second run of analytic"):
        cells_table([one, one])
    unfinished = broken(lambda path: (path / "result.json").unlink(), one, tmp_path / "unfinished")
    with pytest.raises(RunError, match=r"unfinished: not finished.*--resume"):
        cells_table([unfinished])
    unjudged = broken(lambda path: (path / "evaluation-test.json").unlink(), one, tmp_path / "unjudged")
    with pytest.raises(RunError, match=r"bayesnorm eval .*unjudged"):
        cells_table([unjudged])
    with pytest.raises(RunError, match="nowhere"):
        cells_table([tmp_path / "nowhere"])


def test_the_report_shows_image_truth_prediction_and_uncertainty(runs: Path, cells: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(runs / f"{BEST}-0"), "--samples", "4", "-o", str(page)]) == 0
    text = page.read_text()
    assert "Metrics on the validation set" in text
    for part in ("image", "truth", "predicted", "entropy", "mutual information"):
        assert f'alt="{part} of validation image' in text
    assert text.count('class="ramp"') == 2, "a key for each kind of map"
    for name in ("IoU", "Dice", "SEG"):
        assert f">{name}</th>" in text


@pytest.mark.parametrize("options", [["--model", "unet"], ["--activation", "softplus", "--final-activation"]])
def test_other_networks(cells: Path, tmp_path: Path, options: list[str]) -> None:
    more = ["--epochs", 1, "--batch", 2, "--samples", 2, "--engine", "captured", *options]
    assert train(cells, tmp_path / "run", BEST, *more) == 0
    metrics = (RunFolder(tmp_path / "run").read("evaluation-test.json") or {})["metrics"]
    assert 0 < metrics["mc2"]["nll"] < 5


def test_a_unet_needs_images_that_its_stride_divides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = draw_cells(tmp_path / "cells", frames=2, sequences=("01",), side=40)
    assert train(odd, tmp_path / "run", BEST, "--model", "unet", "--epochs", 1) == 1
    error = capsys.readouterr().err
    assert "40 x 40" in error
    assert error.count("\n") == 1


def test_train_says_how_many_frames_it_uses(cells: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(cells, tmp_path / "run", "batch+projection", "--epochs", 1, "--samples", 0) == 0
    assert "6 frames are annotated and used: 4 for training, 2 for validation\n" in capsys.readouterr().out
