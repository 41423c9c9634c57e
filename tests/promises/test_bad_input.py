"""Bad input: one clear line, an exit status, no traceback, and nothing is lost or left behind."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from promises.runs import TRAIN, Commands, checkpoints, reseal, tree

Copy = Callable[[Path], Path]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--norm nonsense", ["--norm", "nonsense", "analytic"]),
        ("--data nonsense", ["--data", "nonsense", "cifar10"]),
        ("--lr fast", ["--lr", "fast", "auto"]),
        ("--lr nan", ["lr", "nan"]),
        ("--epochs 0", ["epochs", "0"]),
        ("--epochs many", ["--epochs"]),
        ("--width -1", ["width", "-1"]),
        ("--width nan", ["width", "nan"]),
        ("--seed -1", ["seed", "-1"]),
        (f"--seed {10**30}", ["seed", str(10**30)]),
        (f"--split-seed {10**30}", ["split", str(10**30)]),
        ("--sigma-u nan --scale noise", ["sigma_u", "nan"]),
        ("--sigma-v -1 --scale noise", ["sigma_v", "-1"]),
        ("--sigma-init 0", ["sigma_init", "0"]),
        ("--prior wide", ["--prior", "wide", "log-uniform"]),
        ("--norm none --scale bayes", ["--scale bayes", "--norm"]),
        ("--model cell-net", ["--model cell-net", "digits"]),
        ("--padding valid", ["(1, 8, 8)", "--padding same"]),
        ("--image-size 3", ["--image-size 3", "32x32"]),
        ("--device toaster", ["--device toaster", "cpu"]),
        ("--device meta", ["--device meta", "cpu"]),
        ("--device cuda:99", ["--device cuda:99"]),
        ("--samples -1", ["--samples"]),
        ("--speed 3", ["--speed"]),
        ("--data cifar10", ["cifar10", "--dir"]),
        ("--data cifar10 --dir /nonexistent", ["/nonexistent", "bayesnorm data"]),
        ("--data folder --dir /nonexistent", ["/nonexistent"]),
        ("--data cells --dir /nonexistent", ["/nonexistent"]),
        ("--batch 100000", ["batch=100000", "1294"]),
        ("--norm batch --norm-batch 64", ["norm_batch=64", "216"]),
    ],
)
def test_bad_options(command: Commands, tmp_path: Path, options: str, names: list[str]) -> None:
    done = command(*TRAIN, *options.split(), "--out", tmp_path / "run")
    assert done.status in (1, 2)
    assert done.error.count("\n") == 0
    assert [name for name in names if name not in done.error] == []
    assert not (tmp_path / "run" / "config.json").exists(), "the corrected command can use the same folder"


@pytest.mark.parametrize(
    "args",
    [
        "eval /nonexistent",
        "eval .",
        "ensemble /nonexistent /nowhere",
        "runs /nonexistent",
        "data cifar10",
        "data cells --dir /nonexistent",
        "nonsense",
        "eval",
        "train --out /proc/none/run",
        f"train --out {__file__}",
        f"train --resume --out {__file__}",
    ],
)
def test_bad_commands(command: Commands, args: str) -> None:
    done = command(*args.split())
    assert done.status in (1, 2)
    assert len(done.error) > 20


def test_debug_shows_where(command: Commands) -> None:
    done = command("eval", "/nonexistent", "--debug")
    assert (done.status, "Traceback" in done.err) == (1, True)


@pytest.mark.parametrize("option", ["seed", "width"])
def test_checkpoints_of_another_run(
    command: Commands, reference: Path, interrupted: Path, copy: Copy, tmp_path: Path, option: str
) -> None:
    """Intact, and with ``seed`` of the right shapes, but not of this run."""
    other = tmp_path / "other"
    assert command(*TRAIN, f"--{option}", {"seed": "1", "width": "0.125"}[option], "--out", other).status == 0
    for run in (reference, interrupted):
        folder = copy(run)
        shutil.rmtree(folder / "checkpoints")
        shutil.copytree(other / "checkpoints", folder / "checkpoints")
        before = tree(folder)
        for done in (command(*TRAIN, "--out", folder, "--resume"), command("eval", folder, "--samples", "3")):
            assert (done.status, tree(folder)) == (1, before), done.err
            assert str(folder) in done.error


def test_a_checkpoint_of_another_version(command: Commands, interrupted: Path, copy: Copy) -> None:
    folder = copy(interrupted)
    last = checkpoints(folder)[-1]
    reseal(last, format=2)
    before = tree(folder)
    for done in (command(*TRAIN, "--out", folder, "--resume"), command("eval", folder)):
        assert (done.status, tree(folder)) == (1, before)
        assert "format 2" in done.error
        assert str(last) in done.error


def test_a_configuration_of_another_version(command: Commands, reference: Path, copy: Copy) -> None:
    folder = copy(reference)
    reseal(folder / "config.json", recipe={"data": "digits", "quantum": True})
    before = tree(folder)
    for done in (command("train", "--out", folder, "--resume"), command("eval", folder)):
        assert (done.status, tree(folder)) == (1, before)
        assert "quantum" in done.error


def test_a_run_that_has_no_checkpoint_yet(command: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert command(*TRAIN, "--out", folder, faults=[{"kind": "step", "step": 1, "signals": [9]}]).status == -9
    done = command("eval", folder)
    assert (done.status, "--resume" in done.error) == (1, True)
    listed = command("runs", tmp_path)
    assert (listed.status, "resumable" in listed.out) == (0, True)
