"""R5: SIGTERM and Ctrl-C finish the step, save, and exit 143 / 130."""

import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from promises.runs import SEARCH, TRAIN, Commands, Done, assert_same, checkpoints, leftovers, wait_for
from torch import nn

from bayesnorm.data import digits
from bayesnorm.train import Config, fit
from bayesnorm.train.events import Event

STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130}


def _stopped(done: Done, number: int) -> None:
    assert (done.status, done.warnings) == (STATUS[signal.Signals(number)], [])
    assert f"signal {number}" in done.error
    assert "--resume" in done.error


@pytest.mark.parametrize("number", STATUS)
def test_a_real_process_in_training(command: Commands, reference: Path, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run"
    slow = {"kind": "slow", "seconds": 0.1}
    process = command.start(*TRAIN, "--checkpoint-steps", "1", "--out", folder, faults=[slow])
    wait_for(folder / "checkpoints/save-000003.json")
    process.send_signal(number)
    _stopped(process.finish(), number)
    assert leftovers(folder) == []
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize("step", [1, 6])
def test_the_step_is_finished_and_saved(command: Commands, reference: Path, tmp_path: Path, step: int) -> None:
    """In the first step, and in the last of an epoch."""
    folder = tmp_path / "run"
    fault = {"kind": "step", "step": step, "signals": [signal.SIGTERM]}
    done = command(*TRAIN, "--checkpoint-steps", "1000", "--out", folder, faults=[fault])
    _stopped(done, signal.SIGTERM)
    assert len(checkpoints(folder)) == 1
    assert "resumable" in command("runs", folder).out
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "step", "step": 12, "signals": [signal.SIGTERM]},
        {"kind": "measurement", "epoch": 2, "signals": [signal.SIGTERM]},
    ],
)
def test_signal_at_the_very_end(command: Commands, reference: Path, tmp_path: Path, fault: dict[str, object]) -> None:
    """In the last step, and while the last epoch is measured: it must not be lost."""
    folder = tmp_path / "run"
    _stopped(command(*TRAIN, "--out", folder, faults=[fault]), signal.SIGTERM)
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize(("step", "number"), [(3, signal.SIGTERM), (15, signal.SIGINT)])
def test_signal_during_the_learning_rate_search(
    command: Commands, searched: Path, tmp_path: Path, step: int, number: int
) -> None:
    folder = tmp_path / "run"
    _stopped(command(*SEARCH, "--out", folder, faults=[{"kind": "step", "step": step, "signals": [number]}]), number)
    assert command(*SEARCH, "--out", folder, "--resume").status == 0
    assert_same(folder, searched)


@pytest.mark.parametrize(("first", "second"), [(15, 15), (2, 2), (15, 2)])
def test_a_second_signal_ends_the_process_at_once(
    command: Commands, reference: Path, tmp_path: Path, first: int, second: int
) -> None:
    folder = tmp_path / "run"
    fault = {"kind": "step", "step": 5, "signals": [first, second]}
    done = command(*TRAIN, "--out", folder, faults=[fault])
    assert done.status == (-signal.SIGTERM if second == signal.SIGTERM else 130)
    assert len(checkpoints(folder)) == 1, "that of step 3: step 5 was not finished"
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize("more", [[], ["--eval-every", "2"]])
def test_a_time_limit_ends_like_a_signal(command: Commands, reference: Path, tmp_path: Path, more: list[str]) -> None:
    folder, whole = tmp_path / "run", tmp_path / "whole"
    done = command.start_module(*TRAIN, *more, "--stop-after", "0", "--out", folder).finish()
    assert (done.status, done.warnings) == (143, [])
    assert done.error == "stopped by the time limit after step 1: pass --resume to go on"
    assert len(checkpoints(folder)) == 1
    assert command(*TRAIN, *more, "--stop-after", "600", "--out", folder, "--resume").status == 0
    if more:
        assert command(*TRAIN, *more, "--out", whole).status == 0
    assert_same(folder, whole if more else reference)


def _raise(event: Event) -> None:
    raise RuntimeError("inside")


@pytest.mark.parametrize("callbacks", [[], [_raise]])
def test_handlers_are_the_callers_again(callbacks: list[Callable[[Event], None]]) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError

    before = {number: signal.signal(number, own) for number in STATUS}
    try:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        with pytest.raises(RuntimeError, match="inside") if callbacks else nullcontext():
            fit(net, digits(), Config(epochs=1, batch=512, lr=0.01), callbacks=callbacks)
        assert [signal.getsignal(number) for number in STATUS] == [own, own]
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
