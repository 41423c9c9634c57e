"""R1: killed at any moment and resumed = never interrupted, bitwise. R12: same seed, same digest."""

import os
import random
import time
from pathlib import Path

import pytest
from promises.runs import SEARCH, TRAIN, Commands, assert_same, leftovers, state, wait_for

SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
"""``KILL_SEED=...`` repeats the moments of a failed test, which are printed with it."""


def _killed(command: Commands, folder: Path, number: int) -> Path:
    """SIGKILL at a random moment of a run that saves after every step, hence often inside a save."""
    chosen = random.Random(SEED + number)
    after, delay = chosen.randrange(10), chosen.uniform(0, 0.03)
    print(f"KILL_SEED={SEED}, number {number}: {delay:.4f} s after save {after}")
    for attempt in range(5):
        run = folder / str(attempt)
        process = command.start_module(*TRAIN, "--checkpoint-steps", "1", "--out", run)
        wait_for(run / (f"checkpoints/save-{after:06d}.json" if after else "config.json"))
        time.sleep(delay)
        process.kill()
        if process.finish().status == -9:
            return run
    raise AssertionError("on this machine a run ends before it can be killed")


@pytest.mark.parametrize("number", [*range(3), *[pytest.param(n, marks=pytest.mark.slow) for n in range(3, 23)]])
def test_killed_at_a_random_moment(command: Commands, reference: Path, tmp_path: Path, number: int) -> None:
    folder = _killed(command, tmp_path, number)
    done = command(*TRAIN, "--out", folder, "--resume")
    assert (done.status, done.err) == (0, "")
    assert_same(folder, reference)


STAGES = [
    *[(call, "config.json", 1) for call in ("fsync", "replace")],
    ("fsync", "checkpoints", 1),
    *[(call, f"save-000003.{kind}", 1) for kind in ("safetensors", "json") for call in ("fsync", "replace")],
    ("fsync", "checkpoints", 6),
    ("unlink", "save-000001.json", 1),
    ("unlink", "save-000001.safetensors", 1),
    ("fsync", "result.json", 1),
    ("replace", "result.json", 1),
    ("replace", "evaluation-test.json", 1),
]


@pytest.mark.parametrize(("call", "name", "times"), STAGES)
def test_killed_in_each_stage_of_writing_a_file(
    command: Commands, reference: Path, tmp_path: Path, call: str, name: str, times: int
) -> None:
    action = "kill half" if call == "fsync" and "." in name else "kill"
    fault = {"kind": "storage", "call": call, "name": name, "times": times, "action": action}
    assert command(*TRAIN, "--out", tmp_path / "run", faults=[fault]).status == -9
    done = command(*TRAIN, "--out", tmp_path / "run", "--resume")
    assert (done.status, done.err) == (0, "")
    assert_same(tmp_path / "run", reference)


def test_killed_again_and_again(command: Commands, reference: Path, tmp_path: Path) -> None:
    """In the first step, between checkpoints, inside and after saves, and while metrics.jsonl is cut back."""
    folder = tmp_path / "run"
    kills = [
        {"kind": "step", "step": 1, "signals": [9]},
        {"kind": "step", "step": 5, "signals": [9]},
        {"kind": "storage", "call": "replace", "name": "save-000002.safetensors", "action": "kill"},
        {"kind": "storage", "call": "replace", "name": "metrics.jsonl", "action": "kill"},
        {"kind": "storage", "call": "replace", "name": "save-000002.json", "action": "killed after"},
        {"kind": "step", "step": 2, "signals": [9]},
        {"kind": "step", "step": 5, "signals": [9]},
    ]
    statuses = [command(*TRAIN, "--out", folder, "--resume", faults=[fault]).status for fault in kills]
    assert statuses == [-9] * len(kills)
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize("step", [1, 12])
def test_killed_before_the_first_checkpoint(command: Commands, reference: Path, tmp_path: Path, step: int) -> None:
    """An epoch may have been written into metrics.jsonl by then."""
    folder, never = tmp_path / "run", ("--checkpoint-steps", "1000")
    assert (
        command(*TRAIN, *never, "--out", folder, faults=[{"kind": "step", "step": step, "signals": [9]}]).status == -9
    )
    assert not (folder / "checkpoints").exists()
    assert command(*TRAIN, *never, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "step", "step": 15, "signals": [9]},
        {"kind": "step", "step": 22, "signals": [9]},
        {"kind": "storage", "call": "replace", "name": "lr_search.json", "times": 2, "action": "kill"},
    ],
)
def test_killed_in_or_after_the_learning_rate_search(
    command: Commands, searched: Path, tmp_path: Path, fault: dict[str, object]
) -> None:
    folder = tmp_path / "run"
    assert command(*SEARCH, "--out", folder, faults=[fault]).status == -9
    done = command(*SEARCH, "--out", folder, "--resume")
    assert (done.status, done.err) == (0, "")
    assert_same(folder, searched)


@pytest.mark.parametrize("step", [2, 6, 7, 10])
def test_killed_between_two_measurements(command: Commands, reference: Path, tmp_path: Path, step: int) -> None:
    """The first epoch is not evaluated; the tensors are those of a run that evaluates all."""
    rarely = [*TRAIN, "--eval-every", "2"]
    assert command(*rarely, "--out", tmp_path / "whole").status == 0
    assert (
        command(*rarely, "--out", tmp_path / "run", faults=[{"kind": "step", "step": step, "signals": [9]}]).status
        == -9
    )
    assert command(*rarely, "--out", tmp_path / "run", "--resume").status == 0
    assert_same(tmp_path / "run", tmp_path / "whole")
    whole, full = state(tmp_path / "whole"), state(reference)
    assert {name for name in whole if whole[name] != full[name]} == {"metrics", "metrics.jsonl"}


def test_same_seed_same_digest_other_seed_other_digest(command: Commands, reference: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        assert command(*TRAIN, "--seed", str(seed), "--out", tmp_path / str(seed)).status == 0
    assert_same(tmp_path / "0", reference)
    assert state(tmp_path / "1")["result.json"] != state(reference)["result.json"]
    assert leftovers(reference) == []
