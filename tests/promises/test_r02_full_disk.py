"""R2: a checkpoint is complete or absent, whatever the disk does."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from promises.runs import TRAIN, Commands, Done, assert_same, checkpoints, leftovers


def _refused_cleanly(done: Done, folder: Path, name: str) -> None:
    """One line that names the file and what to do, and no half of anything on the disk."""
    assert done.status == 1
    assert not done.warnings
    assert name in done.error
    assert "make room" in done.error
    assert "--resume" in done.error
    assert leftovers(folder) == []
    for manifest in checkpoints(folder):
        file = json.loads(manifest.read_text())["file"]
        content = manifest.with_suffix(".safetensors").read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["bytes"], file["sha256"])


@pytest.mark.parametrize(
    ("call", "name", "saved"),
    [
        ("fsync", "config.json", 0),
        ("fsync", "save-000001.safetensors", 0),
        ("fsync", "save-000003.json", 2),
        ("replace", "save-000003.json", 2),
        ("fsync", "result.json", 2),
        ("fsync", "evaluation-test.json", 2),
    ],
)
def test_no_space_left(command: Commands, reference: Path, tmp_path: Path, call: str, name: str, saved: int) -> None:
    folder = tmp_path / "run"
    fault = {"kind": "storage", "call": call, "name": name, "action": "full"}
    done = command(*TRAIN, "--out", folder, faults=[fault])
    assert "No space left on device" in done.error
    _refused_cleanly(done, folder, name)
    assert len(checkpoints(folder)) == saved
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize("name", ["config.json", "save-000001.safetensors", "save-000004.safetensors"])
def test_file_size_limit(command: Commands, reference: Path, tmp_path: Path, name: str) -> None:
    """The limit is such that this file is the first that does not fit: the last checkpoint is the largest file."""
    folder, last = tmp_path / "run", checkpoints(reference)[-1].with_suffix(".safetensors")
    limits = {"config.json": 2000, "save-000001.safetensors": 8000, last.name: last.stat().st_size - 1}
    done = command(*TRAIN, "--out", folder, faults=[{"kind": "full disk", "limit": limits[name]}])
    _refused_cleanly(done, folder, name)
    assert command(*TRAIN, "--out", folder, "--resume").status == 0
    assert_same(folder, reference)


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl"])
def test_a_line_that_does_not_fit(
    command: Commands, reference: Path, interrupted: Path, copy: Callable[[Path], Path], name: str
) -> None:
    """Files that grow: here they have reached the limit, which checkpoints stay below."""
    folder = copy(interrupted)
    limit = 2 * checkpoints(reference)[-1].with_suffix(".safetensors").stat().st_size
    grown = folder / name
    grown.write_bytes(grown.read_bytes().ljust(limit, b"\n"))
    fault = {"kind": "full disk", "limit": limit}
    done = command(*TRAIN, "--out", folder, "--resume", faults=[fault])
    if name == "events.jsonl":
        _refused_cleanly(done, folder, name)
        done = command(*TRAIN, "--out", folder, "--resume")
    assert done.status == 0
    assert_same(folder, reference)
