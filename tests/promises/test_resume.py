"""``--resume`` can always be passed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from promises.runs import TRAIN, Commands, assert_same, tree


def _nothing(folder: Path) -> None:
    pass


def _empty(folder: Path) -> None:
    folder.mkdir()


def _locked_once(folder: Path) -> None:
    folder.mkdir()
    (folder / ".lock").touch()


def _temporary(folder: Path) -> None:
    _locked_once(folder)
    (folder / ".config.json.123.tmp").write_text("{")


def _no_tensors(folder: Path) -> None:
    _locked_once(folder)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/.save-000001.safetensors.123.tmp").write_bytes(b"half")


def _only_metrics(folder: Path) -> None:
    """Of a run whose configuration was removed to start anew."""
    _locked_once(folder)
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n')
    (folder / "result.json").write_text("{}")


@pytest.mark.parametrize("prepare", [_nothing, _empty, _locked_once, _temporary, _no_tensors, _only_metrics])
def test_starts_when_there_is_no_run(
    command: Commands, reference: Path, tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    folder = tmp_path / "run"
    prepare(folder)
    done = command(*TRAIN, "--out", folder, "--resume")
    assert (done.status, done.err) == (0, "")
    assert_same(folder, reference)


@pytest.mark.parametrize("step", [7])
def test_starts_when_there_is_a_configuration_alone(
    command: Commands, reference: Path, tmp_path: Path, step: int
) -> None:
    """Also with leftovers of a save that never came to its end, and lines of metrics."""
    folder, fault = tmp_path / "run", {"kind": "step", "step": step, "signals": [9]}
    assert command(*TRAIN, "--checkpoint-steps", "1000", "--out", folder, faults=[fault]).status == -9
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/save-000001.safetensors").write_bytes(b"no manifest")
    (folder / ".result.json.123.tmp").write_bytes(b"{")
    assert command("train", "--samples", "0", "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


def test_starts_where_it_began_anew_and_was_killed_before_it_was_saved(
    command: Commands, reference: Path, interrupted: Path, copy: Callable[[Path], Path]
) -> None:
    """Of the run before, whose checkpoints were removed to start anew, only the diary is left."""
    folder, fault = copy(interrupted), {"kind": "step", "step": 7, "signals": [9]}
    (folder / "metrics.jsonl").unlink()
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    unsaved = ["--checkpoint-steps", "1000", "--out", folder, "--resume"]
    assert command(*TRAIN, *unsaved, faults=[fault]).status == -9
    assert (folder / "metrics.jsonl").exists()
    assert command("train", "--samples", "0", "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


def test_goes_on_without_the_options_repeated(
    command: Commands, reference: Path, interrupted: Path, copy: Callable[[Path], Path]
) -> None:
    folder = copy(interrupted)
    done = command("train", "--samples", "0", "--out", folder, "--resume")
    assert done.status == 0
    assert "from step 9" in done.out
    assert_same(folder, reference)


def test_does_nothing_on_a_finished_run(command: Commands, reference: Path, copy: Callable[[Path], Path]) -> None:
    folder = copy(reference)
    before = tree(folder)
    done = command(*TRAIN, "--out", folder, "--resume")
    assert (done.status, done.err) == (0, "")
    assert {**tree(folder), "events.jsonl": ""} == {**before, "events.jsonl": ""}


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--epochs", "3", "epochs"),
        ("--seed", "1", "seed"),
        ("--lr", "0.01", "lr"),
        ("--norm", "batch", "norm"),
        ("--width", "0.125", "width"),
        ("--split-seed", "1", "split_seed"),
        ("--optimizer", "adam", "optimizer"),
    ],
)
def test_other_options_are_refused_by_name(
    command: Commands, interrupted: Path, option: str, value: str, named: str
) -> None:
    before = tree(interrupted)
    done = command(*TRAIN, option, value, "--out", interrupted, "--resume")
    assert (done.status, tree(interrupted)) == (1, before)
    assert f"{named} was" in done.error
    assert value in done.error


def test_options_that_change_no_result_may_change(
    command: Commands, reference: Path, interrupted: Path, copy: Callable[[Path], Path]
) -> None:
    folder = copy(interrupted)
    options = ["--checkpoint-steps", "1", "--checkpoint-seconds", "0"]
    assert command(*TRAIN, *options, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)
