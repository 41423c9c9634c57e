"""The rows of table 1 as data: their format, and that each number is that of its run."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bayesnorm.paper import Lab, Preset
from bayesnorm.paper.fig5 import NORMS
from bayesnorm.paper.fig5 import runs as of_fig5
from bayesnorm.paper.fig_a2 import FIRST
from bayesnorm.paper.fig_a2 import runs as of_fig_a2
from bayesnorm.paper.rows import ABOUT, MEASURES, METHODS, PAPER, document, run_of, runs
from bayesnorm.paper.wanted import BATCH
from bayesnorm.train.methods import TABLE, settings_of
from bayesnorm.train.run_folder import RunFolder

TINY = Preset(
    "tiny",
    "one epoch of a network of a few channels",
    images={"data": "digits", "epochs": 1, "width": 0.02, "batch": 512, "train_eval": 0, "kl_factor": 0.5},
    cells={"data": "strokes"},
    by_norm={"batch": {"lr": 0.02}, "analytic": {"lr": 0.01}},
    table_methods=("batch", "analytic+projection+bayes"),
    table_seeds=(0, 3),
    noise_batches=4,
)
BAYES = "analytic+projection+bayes"


def quiet(names: Any) -> Any:
    return nullcontext(dict.fromkeys(names, lambda event: None))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Two methods with two seeds, trained."""
    made = Lab(tmp_path_factory.mktemp("rows"), TINY, quiet, fleet=True)
    made.train(runs(TINY))
    return made


@pytest.fixture(scope="module")
def found(lab: Lab) -> dict[str, Any]:
    return document(lab)


def test_the_eleven_methods_of_the_paper() -> None:
    assert len(METHODS) == len(set(METHODS)) == 11
    assert set(TABLE) < set(METHODS)
    assert all(settings_of(method) for method in METHODS)
    assert list(PAPER) == list(TABLE)


def test_rows_and_figures_share_their_runs() -> None:
    assert all(run_of(run.method, run.seed) == run for norm in NORMS for run in of_fig5(norm).values())
    assert all(
        run_of(run.method, run.seed) == run for first in FIRST.values() for run in of_fig_a2(TINY, first).values()
    )
    noisy = run_of("weight+projection+noise", 2)
    assert (noisy.noise_of, noisy.lr_of) == (BATCH, run_of("weight+projection+noise"))


def test_format(found: dict[str, Any]) -> None:
    """As it was agreed upon; what stands beside is explained."""
    asked = (
        *("method", "protocol", "padding", "kl_factor", "epochs", "seeds", "lr", "accuracy", "nll", "nll_mc10"),
        *("nll_mc30", "nll_moments", "nll_calibrated", "ece", "aurc", "gpu_minutes"),
    )
    assert [row["method"] for row in found["rows"]] == ["batch", BAYES]
    for row in found["rows"]:
        assert tuple(row)[:7] == asked[:7]
        assert set(asked) <= set(row)
        assert (row["protocol"], row["padding"], row["kl_factor"], row["epochs"]) == ("tiny", "same", 0.5, 1)
        assert row["seeds"] == [0, 3]
        assert all(value is None or len(value) == 2 for value in (row[name] for name in MEASURES))
    assert found["about"] == ABOUT
    assert found["diverged"] == {}
    json.dumps(found, allow_nan=False)


def test_numbers_are_those_of_the_runs(lab: Lab, found: dict[str, Any]) -> None:
    for row in found["rows"]:
        for place, seed in enumerate(row["seeds"]):
            run = run_of(row["method"], seed)
            metrics, result = lab.test(run)["metrics"], lab.folder(run).result() or {}
            for name, (way, key) in MEASURES.items():
                assert (row[name][place] if row[name] else None) == metrics.get(way, {}).get(key)
            assert row["lr"] == result["lr"]
            assert row["state_digests"][place] == result["digest"]
            assert row["minutes"][place] == lab.folder(run).diary.seconds() / 60 > 0


def test_what_a_method_does_not_have_is_null(found: dict[str, Any]) -> None:
    plain, bayes = found["rows"]
    drawn = {name for name, (way, _) in MEASURES.items() if way != "single"}
    assert {name for name in MEASURES if plain[name] is None} == drawn
    assert all(bayes[name] is not None for name in MEASURES)
    assert bayes["nll_mc30"] != bayes["nll"] != bayes["nll_calibrated"]


def test_every_row_says_where_it_comes_from(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        assert len(set(row["config_digests"])) == 2, "the seed is a setting"
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in row["config_digests"] + row["state_digests"])
        assert len(row["commands"]) == len(row["seeds"])
        assert all(row["commands"])
        assert row["device"]
        assert row["samples"] == 30
        assert row["gpu_minutes"] is None, "these were not trained on one"
    assert found["rows"][0]["paper"] == {"accuracy": 0.927, "nll": 0.34, "nll_mc10": None, "nll_mc30": None}
    assert found["rows"][1]["paper"] == {"accuracy": 0.944, "nll": 0.38, "nll_mc10": 0.22, "nll_mc30": 0.20}


def test_gpu_minutes_are_the_sum_over_the_seeds(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, about = document(lab)["rows"], RunFolder.about

    def on_cuda(folder: RunFolder) -> dict[str, Any]:
        stored = about(folder)
        return {**stored, "environment": {**stored["environment"], "kind": "cuda"}}

    monkeypatch.setattr(RunFolder, "about", on_cuda)
    for row, before in zip(document(lab)["rows"], plain, strict=True):
        assert row["gpu_minutes"] == sum(before["minutes"])


def test_only_what_is_finished_with_these_settings_has_a_row(lab: Lab, tmp_path: Path) -> None:
    other = Lab(tmp_path, TINY, quiet)
    assert document(other)["rows"] == []
    longer = Lab(lab.out, Preset("tiny", "", {**TINY.images, "epochs": 2}, TINY.cells, TINY.by_norm), quiet)
    assert document(longer)["rows"] == []
