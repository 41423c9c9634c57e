"""``bayesnorm report`` as a person types it."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from promises.runs import words
from torch import nn

from bayesnorm.cli import main
from bayesnorm.data import Split, make_data
from bayesnorm.train import Config, fit, load
from bayesnorm.train.documents import Trained, robustness

QUICK = words("--width 0.02 --batch 512 --epochs 2 --lr 0.02 --train-eval 32 --samples 12 --device cpu")
DOCUMENTS = ("evaluation-test.json", "examples-test.json", "robustness-test.json")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of recipes, evaluated, and one of an own network."""
    root = tmp_path_factory.mktemp("trained")
    assert main(["train", *QUICK, "--norm", "analytic", "--scale", "bayes", "--out", str(root / "bayes")]) == 0
    assert main(["train", *QUICK, "--norm", "batch", "--scale", "point", "--out", str(root / "batch")]) == 0
    generator = torch.Generator().manual_seed(0)
    splits = [
        Split(torch.rand(24, 1, 4, 4, generator=generator), torch.randint(0, 2, (24,), generator=generator))
        for _ in range(3)
    ]
    data = make_data("mine", *splits, classes=("cat", "dog"))
    fit(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), data, Config(epochs=2, lr=0.1, batch=8), out=root / "own")
    return root


@pytest.fixture
def report(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command in a folder with copies of the runs; its status, output and errors."""
    shutil.copytree(trained, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        status = main(["report", *args, "--device", "cpu"])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def written(folder: str) -> dict[str, tuple[bytes, int]]:
    files = {name: Path("runs", folder, name) for name in DOCUMENTS}
    return {name: (path.read_bytes(), path.stat().st_mtime_ns) for name, path in files.items() if path.exists()}


def test_page_and_figures(report: Call) -> None:
    assert report("runs/bayes", "runs/batch", "-o", "x.html") == (0, "x.html; 10 figures in x-figures\n", "")
    page = Path("x.html").read_text()
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert "bayes" in page
    assert "batch" in page
    names = {"training", "reliability", "coverage", "sigma", "robustness"}
    assert {path.name for path in Path("x-figures").iterdir()} == {n + s for n in names for s in (".svg", ".png")}
    for path in Path("x-figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for path in Path("x-figures").glob("*.png"):
        with Image.open(path) as image:
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20


def test_files_beside_runs_are_left_out(report: Call) -> None:
    Path("runs/training.svg").touch()
    status, out, err = report(*map(str, sorted(Path("runs").iterdir())), "-o", "page.html")
    assert (status, err) == (0, "")
    assert "left out, as they are no folders: runs/training.svg" in out
    assert Path("page.html").is_file()


def test_a_page_whose_figures_have_no_place_is_not_begun(report: Call) -> None:
    Path("page-figures").touch()
    status, _, err = report("runs/bayes", "-o", "page.html")
    assert status == 1
    assert "page-figures is a file, not a folder" in err
    assert not Path("page.html").exists()


def test_a_run_without_a_checkpoint_is_shown_beside_the_others(report: Call) -> None:
    assert main(["train", *QUICK, "--lr", "1e30", "--norm", "weight", "--out", "runs/wild"]) == 3
    status, out, err = report("runs/batch", "runs/wild", "-o", "x.html")
    assert (status, "wild has no checkpoint: it is shown without an evaluation" in out) == (0, True), err
    assert "diverged" in Path("x.html").read_text()
    shutil.copytree("runs/bayes", "runs/moved", ignore=shutil.ignore_patterns("checkpoints"))
    out = report("runs/moved", "-o", "x.html")[1]
    assert "moved has no checkpoint: it is shown as it was measured" in out


def test_what_is_missing_is_measured_once(report: Call) -> None:
    before = written("bayes")
    assert list(before) == ["evaluation-test.json"]
    report("runs/bayes", "-o", "x.html")
    first = written("bayes")
    assert tuple(first) == DOCUMENTS
    assert first["evaluation-test.json"] == before["evaluation-test.json"], "12 draws, as it was evaluated with"
    page = Path("x.html").read_bytes()
    report("runs/bayes", "-o", "x.html")
    assert written("bayes") == first
    assert Path("x.html").read_bytes() == page


def test_what_was_not_evaluated_is_evaluated_with_the_draws_that_were_asked_for(report: Call) -> None:
    Path("runs/bayes/evaluation-test.json").unlink()
    assert report("runs/bayes", "-o", "x.html", "--samples", "5")[0] == 0
    stored = json.loads(Path("runs/bayes/evaluation-test.json").read_text())
    assert (stored["samples"], list(stored["metrics"])) == (5, ["single", "moments", "mc5"])


def test_robustness_of_fewer_images_is_kept(report: Call) -> None:
    """A reproduction may have measured another number of them than a report does by itself."""
    found = load("runs/batch")
    robustness(Trained(found.folder, found.net, found.data, found.config, found.step), limit=50)
    before = written("batch")["robustness-test.json"]
    assert report("runs/batch", "-o", "x.html")[0] == 0
    assert written("batch")["robustness-test.json"] == before
    assert json.loads(before[0])["count"] == 50


def test_a_damaged_document_is_measured_again(report: Call) -> None:
    report("runs/batch", "-o", "x.html")
    path = Path("runs/batch/robustness-test.json")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"strength"', b'"Strength"', 1))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        status, _, err = report("runs/batch", "-o", "x.html")
    assert status == 0
    assert err
    assert all("robustness-test.json is damaged" in line for line in err.splitlines())
    assert path.read_bytes() == whole


def test_an_own_network_is_shown_from_what_is_stored(report: Call) -> None:
    before = sorted(path.name for path in Path("runs/own").iterdir())
    status, out, err = report("runs/own", "-o", "own.html")
    assert (status, err) == (0, "")
    assert out == "own.html; 2 figures in own-figures\n"
    assert "own network" in Path("own.html").read_text()
    assert sorted(path.name for path in Path("runs/own").iterdir()) == before


def test_own_networks_and_others_share_a_page(report: Call) -> None:
    status, out, _ = report("runs/own", "runs/bayes", "-o", "both.html")
    assert (status, out) == (0, "both.html; 10 figures in both-figures\n")


def test_runs_of_one_name_are_told_apart_by_their_folders(report: Call) -> None:
    shutil.copytree("runs", "more")
    assert report("runs/batch", "more/batch", "-o", "x.html")[0] == 0
    page = Path("x.html").read_text()
    assert "runs/batch" in page
    assert "more/batch" in page


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["runs/batch", "-o", "x.pdf"], "--out x.pdf: give a file that ends with .html"),
        (["runs/batch", "-o", "x"], "--out x: give a file that ends with .html"),
        (["runs/batch", "runs/batch"], "runs/batch was named twice: name each run once"),
        (["runs/own", "runs/batch", "runs/own/../batch"], "runs/batch was named twice: name each run once"),
        (["link", "runs/batch"], "link was named twice: name each run once"),
        (
            ["runs/batch", "nowhere"],
            "nowhere is no run: it has no config.json; a run folder is made by `bayesnorm train --out`",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(report: Call, args: list[str], message: str) -> None:
    os.symlink("runs/batch", "link")
    before = written("batch")
    assert report(*args) == (1, "", f"bayesnorm: {message}\n")
    assert written("batch") == before, "nothing is measured"
    assert not list(Path().glob("*.html"))


def test_a_run_is_needed(report: Call) -> None:
    status, out, err = report()
    assert (status, out) == (2, "")
    assert "RUN" in err
