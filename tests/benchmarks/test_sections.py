import json
import math
from pathlib import Path
from typing import Any

import cpu
import gpu
import pytest
from sections import cells
from sections.curves import compared, difference

OURS = "analytic+projection+bayes"
TURNED = "torch batch norm, channels last"
FEW = {
    "engine": ["--methods", "none", "batch", OURS],
    "peers": ["--networks", "All-CNN", "--subjects", "plain", "torch batch norm", "analytic"],
    "scale": ["--axes", "batch", "models"],
    "curves": [],
    "cells": [],
}


def _rows(path: Path, section: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())[section]["rows"]
    return rows


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "gpu.json"
    for section, few in FEW.items():
        gpu.main(["--device", "cpu", "--tiny", "--only", section, "--json", str(path), "--engines", "captured", *few])
    return path


def test_engine_measures_each_method_twice_alone_and_in_a_fleet(measured: Path) -> None:
    rows = _rows(measured, "engine")
    assert [(row["models"], row["method"]) for row in rows] == [(n, m) for n in (1, 2) for m in ("none", "batch", OURS)]
    assert all(row["first_ms"] > 0 and row["second_ms"] > 0 for row in rows)
    assert [row["over_none"] for row in rows if row["method"] == "none"] == [1.0, 1.0]


def test_peers_have_our_engine_in_the_same_rounds(measured: Path) -> None:
    rows = {row["subject"]: row for row in _rows(measured, "peers")}
    subjects = ["plain", "torch batch norm", "bayesnorm analytic + Bayes", TURNED]
    assert list(rows) == ["bayesnorm engine (captured)", *subjects]
    assert rows["bayesnorm engine (captured)"]["step_over_ours"] == 1.0
    assert rows["torch batch norm"]["step_over_bn"] == 1.0
    assert rows["bayesnorm analytic + Bayes"]["mc30_over_ours"] == 1.0
    assert all(row["memory_mib"] > 0 for row in rows.values())


def test_scale_goes_along_each_axis(measured: Path) -> None:
    rows = _rows(measured, "scale")
    assert [(row["axis"], row["batch"], row["models"]) for row in rows] == [
        *(("batch", 2, 1), ("batch", 4, 1), ("models", 2, 1), ("models", 2, 2)),
    ]
    assert all(row["images_per_second"] > 0 for row in rows)


def test_cells_measures_each_method(measured: Path) -> None:
    rows = _rows(measured, "cells")
    assert [row["method"] for row in rows] == list(cells.METHODS)
    assert all(row["ms"] > 0 and row["kernels"] == "torch's" for row in rows)


def test_curves_hold_the_reference_against_the_plain_loop_and_compare_all_seeds(measured: Path) -> None:
    assert all(row["relative"] < 1e-4 for row in _rows(measured, "curves_check"))
    runs = _rows(measured, "curves_runs")
    assert {(row["group"], row["seed"], row["epoch"]) for row in runs} == {
        (group, seed, epoch) for group in ("engine", "reference") for seed in (0, 1) for epoch in (1, 2)
    }
    table = [row for row in _rows(measured, "curves") if row["epoch"] == 2 and row["measure"] == "val_nll"]
    mine, others = (
        [r["val_nll"] for r in runs if r["group"] == g and r["epoch"] == 2] for g in ("engine", "reference")
    )
    assert table[0]["difference"] == pytest.approx(sum(mine) / 2 - sum(others) / 2)


def test_the_table_of_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    cpu.main(["--tiny", "--networks", "All-CNN", "--subjects", "plain", "batch norm", "analytic", "--json", str(path)])
    rows = {row["subject"]: row for row in _rows(path, "cpu")}
    assert list(rows) == ["plain", "torch batch norm", "bayesnorm analytic + Bayes", TURNED]
    assert rows["plain"]["mc30_ms"] is None
    assert rows["bayesnorm analytic + Bayes"]["mc_passes"] == 30


def test_the_difference_of_two_means_and_its_standard_error() -> None:
    found = difference([1.0, 2.0, 3.0], [2.0, 4.0])
    assert found["difference"] == -1.0
    assert found["standard_error"] == pytest.approx(math.sqrt(1 / 3 + 2 / 2))
    assert found["z"] == pytest.approx(-1 / math.sqrt(4 / 3))
    assert difference([1.0, 1.0], [1.0, 1.0])["z"] is None


def test_epochs_that_one_group_has_not_reached_are_left_out() -> None:
    about = {"val_nll": 1.0, "val_accuracy": 0.5, "train_nll": 1.0, "engine": "captured", "precision": "bf16"}
    reached = {"engine": 2, "reference": 1}
    rows = [
        {"group": group, "seed": seed, "epoch": epoch + 1, **about}
        for group, epochs in reached.items()
        for seed in range(2)
        for epoch in range(epochs)
    ]
    assert {row["epoch"] for row in compared(rows)} == {1}
