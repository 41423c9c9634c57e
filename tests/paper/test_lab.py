"""The lab: trains each run once, after those that it needs, and says what is missing before it trains anything."""

import dataclasses
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from bayesnorm.errors import DataError, DivergedError, RunError, StoppedError
from bayesnorm.paper import EXHIBITS, PRESETS, Lab, Preset, Wanted
from bayesnorm.paper import lab as lab_module
from bayesnorm.paper.reproduce import reproduce
from bayesnorm.paper.wanted import BATCH
from bayesnorm.train import job as job_module

TINY = Preset(
    "tiny",
    "one epoch of a network of a few channels",
    images={"data": "digits", "epochs": 1, "width": 0.02, "batch": 512, "train_eval": 0},
    cells={"data": "strokes"},
    by_norm={"batch": {"lr": 0.02}, "analytic": {"lr": 0.01}},
    noise_batches=4,
)
SEARCHED = dataclasses.replace(TINY, by_norm={}, images={**TINY.images, "lr_trials": 3, "lr_epochs": 1})
OTHER = Wanted("batch", seed=1, lr_of=BATCH)
NOISY = Wanted("analytic+noise", noise_of=BATCH)


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
    lab = Lab(tmp_path, SEARCHED, show)
    lab.complete([OTHER, OTHER, BATCH])
    assert show.opened == [["digits-batch-seed0"], ["digits-batch-seed1"]]
    assert lab.folder(OTHER).about()["config"]["lr"] == (lab.folder(BATCH).result() or {})["lr"]
    assert lab.test(OTHER)["samples"] == 30
    Lab(tmp_path, SEARCHED, refused).complete([BATCH, OTHER])
    for run in (BATCH, OTHER):
        lines = (lab.folder(run).path / "events.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in lines] == ["start", "finish"]


def test_a_run_does_not_wait_for_a_learning_rate_that_is_given(tmp_path: Path) -> None:
    show = Shown()
    Lab(tmp_path, TINY, show).complete([OTHER, BATCH])
    assert show.opened == [["digits-batch-seed1", "digits-batch-seed0"]]


def test_a_side_experiment_without_settings_of_its_own_is_the_same_run(tmp_path: Path) -> None:
    show = Shown()
    lab = Lab(tmp_path, TINY, show)
    lab.complete([BATCH, dataclasses.replace(BATCH, side=True)])
    assert show.opened == [["digits-batch-seed0"]]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-batch-seed0"]


def test_figure_2_of_a_preset_with_side_experiments(tmp_path: Path) -> None:
    """Both runs are as long as those are, and have one learning rate."""
    preset = dataclasses.replace(TINY, norm_batch=600, side={"epochs": 2})
    lab = Lab(tmp_path, preset, Shown())
    document = reproduce(EXHIBITS["fig2"], lab)
    names = ["digits-batch-side-epochs=2-seed0", "digits-batch-norm600-side-epochs=2-seed0"]
    assert list(document["runs"]) == names
    assert {(run["epochs"], run["lr"], run["batch"]) for run in document["runs"].values()} == {(2, 0.02, 512)}
    assert document["measured"]["sizes"] == {"small": 512, "large": 600}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == set(names)
    assert lab.history(EXHIBITS["fig2"].wanted(preset)[0])[-1]["val_nll"] is not None
    Lab(tmp_path, preset, refused).complete(EXHIBITS["fig2"].wanted(preset))


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_that_diverges_ends_neither_the_others_nor_what_does_not_need_it(tmp_path: Path, at_once: int) -> None:
    wild = dataclasses.replace(TINY, by_norm={**TINY.by_norm, "batch": {"lr": 1e30}})
    lab = Lab(tmp_path, wild, Shown(), at_once=at_once)
    sound = Wanted("analytic+projection")
    lab.train([NOISY, sound, BATCH])
    assert (lab.folder(BATCH).result() or {})["state"] == "diverged"
    assert (lab.folder(sound).result() or {})["state"] == "finished"
    assert not lab.folder(NOISY).exists()
    assert (lab.lost(sound), lab.lost(BATCH), lab.lost(NOISY)) == (None, BATCH, BATCH)
    lab.complete([sound])
    for run in (BATCH, NOISY):
        with pytest.raises(DivergedError, match=r"digits-batch-seed0: diverged at step"):
            Lab(tmp_path, wild, refused).complete([run])


def test_a_finished_run_is_not_lost_with_one_that_it_needed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, TINY, refused)
    for run, state in ((BATCH, "diverged"), (OTHER, "finished")):
        lab.folder(run).path.mkdir(parents=True)
        lab.folder(run).finish({"state": state})
    assert (lab.lost(BATCH), lab.lost(OTHER), lab.lost(NOISY)) == (BATCH, None, BATCH)


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


def test_a_run_that_a_folder_of_records_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    lab = Lab(tmp_path / "out", PRESETS["short"], refused, runs=tmp_path / "records")
    with pytest.raises(DataError) as caught:
        lab.complete([BATCH])
    name = BATCH.name(PRESETS["short"])
    assert str(caught.value).startswith(
        f"{tmp_path / 'records'} has no finished run {name}: --preset short needs --dir"
    )


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
    longer = Preset("longer", "", {**TINY.images, "epochs": 2}, TINY.cells, TINY.by_norm)
    with pytest.raises(RunError, match=r"digits-batch-seed0.*epochs was 1, now it is 2"):
        Lab(tmp_path, longer, Shown()).complete([BATCH])


def test_stopped_it_says_that_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(job: Any, emit: Any, stop_at: float | None) -> None:
        raise StoppedError("stopped by signal 2 after step 3: pass --resume to go on", 2)

    monkeypatch.setattr(lab_module, "complete", stopped)
    with pytest.raises(StoppedError) as caught:
        Lab(tmp_path, TINY, Shown()).complete([BATCH])
    assert str(caught.value) == "digits-batch-seed0: stopped by signal 2: the same command goes on"
    assert (caught.value.signal, caught.value.exit_code) == (2, 130)


# As a fleet in this process.

ANALYTIC = Wanted("analytic+projection")


def test_runs_of_a_level_are_one_fleet_and_each_is_what_it_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets, fit_fleet = [], job_module.fit_fleet

    def told(members: Any, **options: Any) -> Any:
        fleets.append(list(members))
        assert len({id(member.data) for member in members.values()}) == 1, "read once"
        return fit_fleet(members, **options)

    monkeypatch.setattr(job_module, "fit_fleet", told)
    alone, together = Lab(tmp_path / "1", TINY, Shown()), Lab(tmp_path / "2", TINY, Shown(), fleet=True)
    for lab in (alone, together):
        lab.complete([OTHER, ANALYTIC])
    assert fleets == [["digits-batch-seed1", "digits-batch-seed0", "digits-analytic+projection-seed0"]]
    for run in (BATCH, OTHER, ANALYTIC):
        results = [lab.folder(run).result() for lab in (alone, together)]
        assert results[0] == results[1]
        assert alone.test(run) == together.test(run)
    Lab(tmp_path / "2", TINY, refused, fleet=True).complete([OTHER, ANALYTIC])


def test_the_searches_of_a_fleet_are_those_of_its_members(tmp_path: Path) -> None:
    alone, together = Lab(tmp_path / "1", SEARCHED, Shown()), Lab(tmp_path / "2", SEARCHED, Shown(), fleet=True)
    for lab in (alone, together):
        lab.complete([BATCH, ANALYTIC])
    for run in (BATCH, ANALYTIC):
        assert alone.folder(run).result() == together.folder(run).result()
        assert alone.folder(run).read("lr_search.json") == together.folder(run).read("lr_search.json")


def test_a_learning_rate_that_others_take_over_is_found_before_all_are_trained_as_one_fleet(tmp_path: Path) -> None:
    show = Shown()
    alone, together = Lab(tmp_path / "1", SEARCHED, Shown()), Lab(tmp_path / "2", SEARCHED, show, fleet=True)
    for lab in (alone, together):
        lab.complete([BATCH, OTHER, ANALYTIC])
    everything = ["digits-batch-seed0", "digits-batch-seed1", "digits-analytic+projection-seed0"]
    assert show.opened == [["digits-batch-seed0"], everything]
    for run in (BATCH, OTHER, ANALYTIC):
        assert alone.folder(run).result() == together.folder(run).result()
    search = together.folder(BATCH).read("lr_search.json") or {}
    assert together.folder(OTHER).about()["config"]["lr"] in [trial["lr"] for trial in search["trials"]]


def test_a_search_that_finds_nothing_loses_those_that_wait_for_it(tmp_path: Path) -> None:
    wild = dataclasses.replace(SEARCHED, images={**SEARCHED.images, "lr_low": 1e30, "lr_high": 1e32})
    lab = Lab(tmp_path, wild, Shown(), fleet=True)
    lab.train([OTHER, ANALYTIC])
    assert (lab.lost(BATCH), lab.lost(OTHER), lab.lost(ANALYTIC)) == (BATCH, BATCH, ANALYTIC)
    assert not lab.folder(OTHER).exists()


def test_a_search_that_is_stopped_goes_on(tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match=r"^digits-batch-seed0: .*: the same command goes on"):
        Lab(tmp_path, SEARCHED, Shown(), fleet=True, stop_at=time.monotonic()).complete([OTHER])
    lab = Lab(tmp_path, SEARCHED, Shown(), fleet=True)
    lab.complete([OTHER])
    assert lab.is_done(OTHER)


def test_other_data_are_a_fleet_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = dataclasses.replace(
        TINY, cells={"data": "strokes", "epochs": 1, "lr": 0.003, "width": 0.1, "train_eval": 0}
    )
    fleets, fit_fleet = [], job_module.fit_fleet

    def told(members: Any, **options: Any) -> Any:
        fleets.append(list(members))
        return fit_fleet(members, **options)

    monkeypatch.setattr(job_module, "fit_fleet", told)
    wide, cells = Wanted("batch", norm_batch=600), Wanted("batch", cells=True)
    lab = Lab(tmp_path, mixed, Shown(), fleet=True)
    lab.train([BATCH, wide, cells, ANALYTIC])
    assert fleets == [
        ["digits-batch-seed0", "digits-batch-norm600-seed0", "digits-analytic+projection-seed0"],
        ["strokes-batch-seed0"],
    ]
    assert all(lab.is_done(run) for run in (BATCH, wide, cells, ANALYTIC))


def test_one_of_a_fleet_that_diverges_stops_alone(tmp_path: Path) -> None:
    wild = dataclasses.replace(TINY, by_norm={**TINY.by_norm, "batch": {"lr": 1e30}})
    lab = Lab(tmp_path, wild, Shown(), fleet=True)
    lab.train([NOISY, ANALYTIC])
    assert (lab.lost(NOISY), lab.lost(ANALYTIC)) == (BATCH, None)
    assert lab.is_done(ANALYTIC)
    assert not lab.is_done(NOISY)
    with pytest.raises(DivergedError, match=r"digits-batch-seed0: diverged at step"):
        Lab(tmp_path, wild, refused, fleet=True).complete([NOISY])


@pytest.mark.parametrize(
    ("options", "who"), [({"fleet": True}, ""), ({}, "digits-batch-seed0: "), ({"at_once": 2}, "")]
)
def test_a_time_limit_stops_and_the_same_goes_on(tmp_path: Path, options: dict[str, Any], who: str) -> None:
    wanted = [BATCH, ANALYTIC]
    with pytest.raises(StoppedError) as caught:
        Lab(tmp_path, TINY, Shown(), stop_at=time.monotonic(), **options).complete(wanted)
    assert str(caught.value) == f"{who}stopped by the time limit: the same command goes on"
    assert caught.value.exit_code == 143
    lab, whole = Lab(tmp_path, TINY, Shown(), **options), Lab(tmp_path / "whole", TINY, Shown())
    for each in (lab, whole):
        each.complete(wanted)
    assert [lab.folder(run).result() for run in wanted] == [whole.folder(run).result() for run in wanted]


def test_no_evaluation_begins_when_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainings are over; what is missing is made by the same command."""
    begin = time.monotonic()

    def slow(members: Any, **options: Any) -> Any:
        found = job_module_fit(members, **{**options, "stop_at": None})
        monkeypatch.setattr(job_module.time, "monotonic", lambda: begin + 1e9)
        return found

    job_module_fit = job_module.fit_fleet
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "fit_fleet", slow)
        with pytest.raises(StoppedError, match="stopped by the time limit: the same command goes on"):
            Lab(tmp_path, TINY, Shown(), fleet=True, stop_at=begin + 1e6).complete([BATCH])
    monkeypatch.undo()
    lab = Lab(tmp_path, TINY, Shown(), fleet=True)
    assert (lab.folder(BATCH).result() or {})["state"] == "finished"
    assert not lab.is_done(BATCH)
    lab.complete([BATCH])
    assert lab.is_done(BATCH)


# Other settings.


def test_other_settings_have_runs_of_their_own(tmp_path: Path) -> None:
    changed = TINY.changed({"kl_factor": 2.0, "eval_every": 3})
    for preset in (TINY, changed):
        Lab(tmp_path / preset.tag, preset, Shown(), runs=tmp_path / "runs").complete([BATCH])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "digits-batch-eval_every=3,kl_factor=2-seed0",
        "digits-batch-seed0",
    ]
    config = Lab(tmp_path, changed, refused).folder(BATCH).about()["config"]
    assert (config["kl_factor"], config["eval_every"], config["lr"]) == (2.0, 3, 0.02)
