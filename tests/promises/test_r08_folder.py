"""R8: the configuration is there before step 0; another run's folder, or anyone else's, is never overwritten."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from promises.runs import TRAIN, Commands, assert_same, tree, wait_for
from torch import nn

import bayesnorm
from bayesnorm.data import digits
from bayesnorm.errors import RunError
from bayesnorm.train import Config, fit


def test_configuration_before_the_first_step(command: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed = command(*TRAIN, "--seed", "7", "--out", folder, faults=[{"kind": "step", "step": 1, "signals": [9]}])
    assert killed.status == -9
    assert not (folder / "checkpoints").exists()
    found = json.loads((folder / "config.json").read_text())
    where = found["environment"]
    assert found["config"]["seed"] == 7
    assert found["config"]["lr"] == 0.02
    assert found["recipe"]["data"] == "digits"
    assert (found["data"]["name"], found["data"]["digest"]) == ("digits", digits().digest())
    assert found["data"]["augment"]["shift"] == digits().augment.shift
    assert where["command"][1:] == [*TRAIN, "--seed", "7", "--out", str(folder)]
    assert where["versions"]["torch"] == torch.__version__
    assert set(where["versions"]) == {"bayesnorm", "torch", "numpy", "scipy", "safetensors"}
    assert where["cores"] == os.cpu_count()
    assert (where["threads"], where["processes"]) == (1, 1)
    assert all(where[key] for key in ("python", "platform", "device"))
    assert where["commit"] == _commit()


def _commit() -> str | None:
    if shutil.which("git") is None:
        return None
    here = Path(bayesnorm.__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


@pytest.mark.parametrize("run", ["reference", "interrupted"])
@pytest.mark.parametrize("options", [[], ["--seed", "1"], ["--data", "digits", "--norm", "batch"]])
def test_running_twice_changes_no_byte(
    command: Commands, request: pytest.FixtureRequest, run: str, options: list[str]
) -> None:
    folder = request.getfixturevalue(run)
    before = tree(folder)
    done = command(*TRAIN, *options, "--out", folder)
    assert (done.status, tree(folder)) == (1, before)
    assert "holds a run already" in done.error
    assert "--resume" in done.error


@pytest.mark.parametrize("resume", [[], ["--resume"]])
@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "checkpoints.zip", "data/1.png", "config.json"])
def test_a_folder_of_someone_else(command: Commands, tmp_path: Path, name: str, resume: list[str]) -> None:
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text("years of work")
    before = tree(tmp_path)
    done = command(*TRAIN, "--out", tmp_path / "mine", *resume)
    assert (done.status, tree(tmp_path)) == (1, before)
    assert "--out" in done.error


def test_nothing_is_cleaned_in_a_folder_that_is_no_run(tmp_path: Path) -> None:
    """It has a config.json, as many folders do, and files that look like those a killed save leaves."""
    (tmp_path / "checkpoints").mkdir()
    for name in ("config.json", ".notes.tmp", "checkpoints/save-000001.safetensors"):
        (tmp_path / name).write_text("{}")
    before = tree(tmp_path)
    with pytest.raises(RunError, match=r"config\.json"):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits(), Config(lr=0.1), out=tmp_path, resume=True)
    assert tree(tmp_path) == before


def test_a_finished_run_without_manifests_is_left_as_it_is(
    command: Commands, reference: Path, copy: Callable[[Path], Path]
) -> None:
    folder = copy(reference)
    for manifest in folder.glob("checkpoints/*.json"):
        manifest.unlink()
    before = tree(folder)
    done = command(*TRAIN, "--out", folder, "--resume")
    assert (done.status, tree(folder)) == (1, before)
    assert "checkpoints" in done.error


def test_a_folder_that_is_held(command: Commands, reference: Path, tmp_path: Path) -> None:
    """Refused as long as its process lives; free when it was killed."""
    folder = tmp_path / "run"
    slow = {"kind": "slow", "seconds": 0.1}
    holder = command.start(*TRAIN, "--checkpoint-steps", "1", "--out", folder, faults=[slow])
    try:
        wait_for(folder / "checkpoints/save-000002.json")
        holder.send_signal(signal.SIGSTOP)
        before = tree(folder)
        for options in ([], ["--resume"]):
            done = command(*TRAIN, "--out", folder, *options)
            assert (done.status, tree(folder)) == (1, before)
            assert ("running process" if options else "holds a run already") in done.error
        assert "running" in command("runs", folder).out
    finally:
        holder.send_signal(signal.SIGKILL)
        assert holder.finish().status == -9
    assert "resumable" in command("runs", folder).out
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)
