"""The lab: trains each run once, after those that it needs, and says what is missing before it trains anything."""

import dataclasses
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from bayesnorm.errors import DataError, DivergedError, RunError, StoppedError
from bayesnorm.paper import PRESETS, Lab, Preset, Wanted
from bayesnorm.paper import lab as lab_module
from bayesnorm.paper.wanted import BATCH

TINY = Preset(
    "tiny",
    "one epoch of a network of a few channels",
    images={"data": "digits", "epochs": 1, "width": 0.02, "batch": 512, "train_eval": 0},
    cells={"data": "strokes"},
    lr={"batch": 0.02, "analytic": 0.01},
    noise_batches=4,
)
OTHER = Wanted("batch", seed=1, lr_of=BATCH)


class Shown:
    """A display that remembers which runs it was opened for."""

    def __init__(self) -> None:
        self.opened: list[list[str]] = []

    def __call__(self, names: Sequence[str]) -> AbstractContextManager[dict[str, Any]]:
        self.opened.append(list(names))
        return nullcontext(dict.fromkeys(names, lambda event: None))


def refused(names: Sequence[str]) -> AbstractContextManager[dict[str, Any]]:
    raise AssertionError(f"{names} would be trained")


def test_a_run_comes_after_what_it_needs_and_is_trained_once(tmp_path: Path) -> None:
    show = Shown()
    lab = Lab(tmp_path, TINY, show)
    lab.complete([OTHER, OTHER, BATCH])
    assert show.opened == [["digits-batch-seed0"], ["digits-batch-seed1"]]
    assert lab.folder(OTHER).about()["config"]["lr"] == (lab.folder(BATCH).result() or {})["lr"]
    assert lab.test(OTHER)["samples"] == 30
    Lab(tmp_path, TINY, refused).complete([BATCH, OTHER])
    for run in (BATCH, OTHER):
        lines = (lab.folder(run).path / "events.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in lines] == ["start", "finish"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_that_diverges_ends_neither_the_others_nor_what_does_not_need_it(tmp_path: Path, at_once: int) -> None:
    wild = dataclasses.replace(TINY, lr={**TINY.lr, "batch": 1e30})
    lab = Lab(tmp_path, wild, Shown(), at_once=at_once)
    sound = Wanted("analytic+projection")
    lab.train([OTHER, sound, BATCH])
    assert (lab.folder(BATCH).result() or {})["state"] == "diverged"
    assert (lab.folder(sound).result() or {})["state"] == "finished"
    assert not lab.folder(OTHER).exists()
    assert (lab.lost(sound), lab.lost(BATCH), lab.lost(OTHER)) == (None, BATCH, BATCH)
    lab.complete([sound])
    for run in (BATCH, OTHER):
        with pytest.raises(DivergedError, match=r"digits-batch-seed0: diverged at step"):
            Lab(tmp_path, wild, refused).complete([run])


def test_an_evaluation_that_is_missing_is_made_without_training(tmp_path: Path) -> None:
    lab = Lab(tmp_path, TINY, Shown())
    lab.complete([BATCH])
    before = lab.test(BATCH)
    (lab.folder(BATCH).path / "evaluation-test.json").unlink()
    steps: list[Any] = []
    Lab(tmp_path, TINY, lambda names: nullcontext(dict.fromkeys(names, steps.append))).complete([BATCH])
    assert lab.test(BATCH) == before
    assert [type(event).__name__ for event in steps if type(event).__name__ in ("Stepped", "EpochEnded")] == []


def test_runs_do_not_depend_on_how_many_are_trained_at_once(tmp_path: Path) -> None:
    wanted = [BATCH, Wanted("analytic")]
    alone, together = Lab(tmp_path / "1", TINY, Shown()), Lab(tmp_path / "2", TINY, Shown(), at_once=2)
    for lab in (alone, together):
        lab.complete(wanted)
    for run in wanted:
        results = [(lab.folder(run).result() or {})["digest"] for lab in (alone, together)]
        assert results[0] == results[1]


def test_noise_of_batch_norm_is_injected_and_measured_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path, TINY, Shown())
    run = Wanted("analytic+projection+noise", noise_of=BATCH)
    lab.complete([run])
    path = lab.folder(BATCH).path / "bn-noise.json"
    written = path.stat().st_mtime_ns
    noise = lab.bn_noise(BATCH)
    assert path.stat().st_mtime_ns == written
    assert lab.folder(run).about()["recipe"]["sigma_u"] == noise["trained"]["sigma_u"]
    assert len(noise["layers"]) == len(noise["initial"]["sigma_v"]) == 9


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (False, "--preset short needs --dir, the folder of cifar10; or choose --preset smoke"),
        (True, "--preset short needs --cells-dir, the folder of cells; or choose --preset smoke"),
    ],
)
def test_a_folder_that_was_not_given_is_asked_for(tmp_path: Path, cells: bool, message: str) -> None:
    lab = Lab(tmp_path / "out", PRESETS["short"], refused)
    for call in (lambda: lab.complete([Wanted("none", cells=cells)]), lambda: lab.data(cells)):
        with pytest.raises(DataError) as caught:
            call()
        assert str(caught.value) == message
    assert not lab.out.exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    lab = Lab(tmp_path, PRESETS["paper"], refused, directory=tmp_path / "no", cells=tmp_path / "none")
    with pytest.raises(DataError, match=r"^--dir \S+/no: there is no such folder; give that of cifar10$"):
        lab.complete([BATCH])
    with pytest.raises(DataError, match=r"^--cells-dir \S+/none: there is no such folder; give that of cells$"):
        lab.data(cells=True)


def test_the_cells_are_asked_for_before_images_are_trained_on(tmp_path: Path) -> None:
    lab = Lab(tmp_path, PRESETS["short"], refused, directory=tmp_path)
    with pytest.raises(DataError, match="--cells-dir"):
        lab.complete([OTHER, Wanted("none", cells=True)])


def test_presets_of_files_need_no_folder(tmp_path: Path) -> None:
    lab = Lab(tmp_path, PRESETS["smoke"], refused)
    assert lab.place(False) == lab.place(True) == {}
    assert (lab.data().name, lab.data(cells=True).name) == ("digits", "strokes")


def test_a_folder_of_another_preset_is_not_mixed_up_with_this(tmp_path: Path) -> None:
    Lab(tmp_path, TINY, Shown()).complete([BATCH])
    longer = Preset("longer", "", {**TINY.images, "epochs": 2}, TINY.cells, TINY.lr)
    with pytest.raises(RunError, match=r"digits-batch-seed0.*epochs was 1, now it is 2"):
        Lab(tmp_path, longer, Shown()).complete([BATCH])


def test_stopped_it_says_that_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(job: Any, emit: Any) -> None:
        raise StoppedError("stopped by signal 2 after step 3: pass --resume to go on", 2)

    monkeypatch.setattr(lab_module, "complete", stopped)
    with pytest.raises(StoppedError) as caught:
        Lab(tmp_path, TINY, Shown()).complete([BATCH])
    assert str(caught.value) == "digits-batch-seed0: stopped by signal 2: the same command goes on"
    assert (caught.value.signal, caught.value.exit_code) == (2, 130)
