"""Commands in processes of their own, and what a run folder holds."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch

import bayesnorm

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(bayesnorm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def words(text: str) -> list[str]:
    """Arguments of a command."""
    return text.split()


COMMON = words("--data digits --width 0.02 --samples 0 --train-eval 32")
TRAIN = ["train", *COMMON, *words("--epochs 2 --batch 216 --lr 0.02 --checkpoint-steps 3")]
"""Two epochs of 6 steps, checkpoints after 3, 6, 9 and 12."""
SEARCH = ["train", *COMMON, *words("--epochs 1 --batch 216 --lr auto --lr-trials 3 --lr-epochs 1 --checkpoint-steps 3")]
"""Three trials of 6 steps, then one epoch; checkpoints after 3 and 6."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("bayesnorm: warning: ")]

    @property
    def error(self) -> str:
        """The one line that says what is wrong; the only other thing on stderr are warnings."""
        (line,) = [line for line in self.err.splitlines() if line not in self.warnings]
        assert line.startswith("bayesnorm: ")
        return line.removeprefix("bayesnorm: ")


class Commands:
    """Runs commands: in forks of a warm process, which is fast, or as a user does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.ended: dict[int, int] = {}
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self._answer() == "ready"

    def close(self) -> None:
        self.server.communicate(timeout=60)

    def __call__(self, *args: str | Path, faults: Sequence[dict[str, Any]] = ()) -> Done:
        """``bayesnorm ARGS`` to its end; ``args`` may also be a Python script and its arguments."""
        return self.start(*args, faults=faults).finish()

    def start(self, *args: str | Path, faults: Sequence[dict[str, Any]] = ()) -> "Fork":
        """The same in the background."""
        self.count += 1
        files = {name: str(self.folder / f"{name}-{self.count}") for name in ("stdout", "stderr")}
        job = {"args": [str(arg) for arg in args], "folder": str(self.folder), "faults": list(faults), **files}
        assert self.server.stdin
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        answer = self._answer()
        while " " in answer:
            self._ended(answer)
            answer = self._answer()
        return Fork(self, int(answer), [Path(file) for file in files.values()])

    def start_module(self, *args: str | Path) -> "Module":
        """``python -m bayesnorm ARGS`` in the background."""
        return Module(
            [sys.executable, "-m", "bayesnorm", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            cwd=self.folder,
        )

    def wait(self, process: int) -> int:
        """Exit status of a process; others that end before are remembered."""
        while process not in self.ended:
            self._ended(self._answer())
        return self.ended.pop(process)

    def _ended(self, answer: str) -> None:
        process, status = map(int, answer.split())
        self.ended[process] = os.waitstatus_to_exitcode(status)

    def _answer(self) -> str:
        assert self.server.stdout
        return self.server.stdout.readline().strip()


@dataclass(frozen=True)
class Fork:
    """A command in a fork of the warm process."""

    commands: Commands
    process: int
    files: list[Path]

    def send_signal(self, number: int) -> None:
        os.kill(self.process, number)

    def finish(self) -> Done:
        status = self.commands.wait(self.process)
        return Done(status, *[file.read_text() for file in self.files])


class Module(subprocess.Popen[str]):
    """A command as a user runs it."""

    def finish(self) -> Done:
        out, err = self.communicate(timeout=120)
        return Done(self.returncode, out, err)


def wait_for(path: Path, seconds: float = 60) -> None:
    """Until the file is there."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.001)


def checkpoints(folder: Path) -> list[Path]:
    """Manifests, oldest first."""
    return sorted((folder / "checkpoints").glob("save-*.json"))


def state(folder: Path) -> dict[str, Any]:
    """All that two equal runs have in common: each tensor bit by bit, counters, metrics, trials, result."""
    manifest = json.loads(checkpoints(folder)[-1].read_text())
    content = checkpoints(folder)[-1].with_suffix(".safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == manifest["file"]["sha256"]
    tensors = safetensors.torch.load(content)
    search = folder / "lr_search.json"
    return {
        **{name: (value.dtype, value.shape, value.numpy().tobytes()) for name, value in tensors.items()},
        "step": manifest["step"],
        "counters": manifest["counters"],
        "metrics.jsonl": (folder / "metrics.jsonl").read_bytes(),
        "result.json": (folder / "result.json").read_bytes(),
        "lr_search.json": search.read_bytes() if search.exists() else None,
        "evaluation-test.json": (folder / "evaluation-test.json").read_bytes(),
    }


def assert_same(folder: Path, reference: Path) -> None:
    """The run ended as the uninterrupted one did, and left nothing lying about."""
    found, expected = state(folder), state(reference)
    differ = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
    assert not differ, f"{len(differ)} differ: {differ[-5:]}"
    assert not leftovers(folder), leftovers(folder)


def leftovers(folder: Path) -> list[str]:
    """Temporary files, and tensors without a manifest."""
    temporary = [path.name for path in folder.rglob("*.tmp")]
    orphans = [p.name for p in folder.glob("checkpoints/*.safetensors") if not p.with_suffix(".json").exists()]
    return temporary + orphans


def tree(folder: Path) -> dict[str, str]:
    """Digest of every file; ``.lock`` may come and go."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def reseal(path: Path, **changes: Any) -> None:
    """Change a sealed document and give it the checksum of its new content."""
    document = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"} | changes
    body = json.dumps(document)
    document["sha256"] = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(json.dumps(document, indent=1) + "\n")
