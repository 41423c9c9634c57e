"""A run on disk: who may write it, what it is, how far it has come.

::

    config.json        what is trained, how, and on what machine; written before step 0
    metrics.jsonl      a line per epoch; the same lines for the same run, so no times
    events.jsonl       starts, first saves, stops, their times and the seconds between
    lr_search.json     trials of the learning-rate search
    trials/            those that have not ended
    checkpoints/       the last two
    result.json        how it ended: finished or diverged
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..errors import RunError
from . import checkpoint, durable
from .checkpoint import Checkpoint
from .diary import Diary
from .durable import DamagedError
from .events import Record
from .identity import difference, same
from .lines import append, as_lines

TRIALS = "trials"
"""Folder of the trials of the learning-rate search that have not ended."""
OURS = {
    *("config.json", "metrics.jsonl", "events.jsonl", "lr_search.json", TRIALS, "checkpoints", "result.json", ".lock"),
    *("evaluation-train.json", "evaluation-val.json", "evaluation-test.json"),
    *("examples-test.json", "robustness-test.json", "baselines-test.json"),
    *("bn-noise.json", "bn-scaling.json", "figures", "tensorboard"),
}
"""Everything that a run folder may hold."""


class RunFolder:
    """Reads and writes one run.

    Arguments:
        path: its folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.diary = Diary(self.path / "events.jsonl")
        self._about: dict[str, Any] = {}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder if need be, and keep other processes out; the lock dies with this process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path} cannot be made ({error.strerror}): choose another --out") from error
        self._refuse_foreign()
        lock = FileLock(self.path / ".lock", blocking=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise RunError(
                f"{self.path} is being written by a running process: wait for it, or choose another --out"
            ) from error
        except OSError as error:
            raise RunError(f"{self.path} cannot be written ({error.strerror}): choose another --out") from error
        try:
            yield
        finally:
            lock.release()

    def is_held(self) -> bool:
        """Whether a running process writes this run."""
        path = self.path / ".lock"
        if not path.exists():
            return False
        lock = FileLock(path, blocking=False)
        try:
            lock.acquire()
        except Timeout:
            return True
        except OSError:  # one that cannot be written is not being written
            return False
        lock.release()
        return False

    def _refuse_foreign(self) -> None:
        if (self.path / "config.json").exists():
            return
        for entry in sorted(self.path.iterdir()):
            known = entry.name in OURS or entry.name.endswith(durable.TEMPORARY)
            if not known:
                raise RunError(
                    f"{self.path} is no run: it holds {entry.name!r}; choose an empty or a new folder as --out"
                )

    def refuse_taken(self) -> None:
        """A run that is there is not begun again."""
        if self.exists():
            raise RunError(f"{self.path} holds a run already: pass --resume to go on with it, or another --out")

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.json").exists() or checkpoint.latest(self.checkpoints) is not None

    def begin(self, about: dict[str, Any]) -> None:
        """Write the configuration; from now on the folder belongs to this run."""
        durable.sweep(self.path)
        checkpoint.clean(self.checkpoints)
        shutil.rmtree(self.path / TRIALS, ignore_errors=True)
        for path in (*self.path.glob("*.jsonl"), *self.path.glob("*.json")):
            path.unlink()
        self._about = about
        durable.write(self.path / "config.json", durable.sealed(about))

    def forget(self) -> None:
        """Remove what :meth:`begin` wrote, if nothing came of it: the next run may be another one."""
        if {entry.name for entry in self.path.iterdir()} <= {"config.json", "events.jsonl", ".lock"}:
            for name in ("config.json", "events.jsonl"):
                (self.path / name).unlink(missing_ok=True)

    def about(self) -> dict[str, Any]:
        """The configuration; from the last checkpoint where ``config.json`` is missing or damaged."""
        path = self.path / "config.json"
        try:
            return durable.read_sealed(path)
        except NotADirectoryError as error:
            raise RunError(f"{self.path} is no run but a file: name the folder of a run") from error
        except (DamagedError, FileNotFoundError) as error:
            found = checkpoint.load(self.checkpoints)
            if found is None:
                what = error if isinstance(error, DamagedError) else f"{self.path} is no run: it has no config.json"
                raise RunError(f"{what}; a run folder is made by `bayesnorm train --out`") from error
            if isinstance(error, DamagedError):
                warnings.warn(f"{error}; restored from the checkpoint of step {found.step}", stacklevel=2)
            return found.about

    def refuse_lost(self) -> None:
        """RunError if a run without a checkpoint had some: it would begin anew, and what is left of it be removed."""
        again = f"put it back, or delete {self.path} to begin anew"
        orphan = checkpoint.orphan(self.checkpoints)
        if orphan is not None and (orphan.stem != checkpoint.FIRST or self.diary.saved_at()):
            raise RunError(f"{orphan} cannot be used without {orphan.with_suffix('.json').name}: {again}")
        path = self.path / "metrics.jsonl"
        if path.exists() and path.stat().st_size and self.diary.saved_at():
            raise RunError(f"{self.path} had been saved, but there is no checkpoint in {self.checkpoints}: {again}")

    def is_last(self, found: Checkpoint) -> bool:
        """Whether no later checkpoint is there, damaged or not."""
        return found.path == checkpoint.latest(self.checkpoints)

    def take_up(self, about: dict[str, Any], found: tuple[Checkpoint, list[Record]] | None) -> None:
        """Make the folder what it was at a checkpoint; ``about`` is its configuration.

        What a killed process left is removed, ``metrics.jsonl`` is cut back, and damaged files are restored.
        """
        durable.sweep(self.path)
        checkpoint.clean(self.checkpoints, found[0].path if found else None)
        self._about = about
        self._restore("config.json", durable.sealed(about), "")
        if found is None:
            (self.path / "metrics.jsonl").unlink(missing_ok=True)
            return
        stored, history = found
        where = f"restored from the checkpoint of step {stored.step}"
        self._restore("metrics.jsonl", as_lines(history), where, cut=True)
        if stored.counters["trials"] is not None:
            self._restore("lr_search.json", durable.sealed({"trials": stored.counters["trials"]}), where)

    def _restore(self, name: str, content: bytes, where: str, cut: bool = False) -> None:
        """Write a file unless it is so already; say so where it was changed (``cut``: more than grown)."""
        path = self.path / name
        present = path.read_bytes() if path.exists() else b""
        if present != content:
            if where and not (cut and present.startswith(content)):
                warnings.warn(f"{path} is {'damaged' if present else 'missing'}; {where}", stacklevel=2)
            durable.write(path, content)

    def append(self, record: Record) -> None:
        """Add a line to ``metrics.jsonl``."""
        append(self.path / "metrics.jsonl", record)

    def save(self, step: int, counters: dict[str, Any], tensors: dict[str, Tensor], history: list[Record]) -> Path:
        """Make the state durable, the metrics so far with it."""
        lines = as_lines(history) or b"\n"  # an empty tensor has no buffer
        content = {**tensors, "metrics": torch.frombuffer(bytearray(lines), dtype=torch.uint8)}
        return checkpoint.save(self.checkpoints, Checkpoint(step, counters, content, self._about))

    def peek(self) -> tuple[Checkpoint, list[Record]] | None:
        """The latest intact checkpoint and the metrics up to it; nothing is written."""
        found = checkpoint.load(self.checkpoints)
        if found is None:
            return None
        lines = bytes(found.tensors.pop("metrics").tolist()).strip(b"\n")
        return found, [json.loads(line) for line in lines.splitlines()]

    def history(self) -> list[Record]:
        """The metrics up to the latest intact checkpoint; all of a run that diverged, or lost them when finished."""
        state = (self.result() or {}).get("state")
        found = None if state == "diverged" else self.peek()
        if found:
            return found[1]
        return self.lines() if state in ("finished", "diverged") else []

    def lines(self) -> list[Record]:
        """The lines of ``metrics.jsonl`` as they are."""
        path = self.path / "metrics.jsonl"
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        return [json.loads(line) for line in whole.splitlines()]

    def finish(self, result: dict[str, Any]) -> None:
        """Write how the run ended."""
        durable.write(self.path / "result.json", durable.sealed(result))

    def result(self) -> dict[str, Any] | None:
        """How the run ended; None if it has not. A damaged file counts as absent: the end can be reached again."""
        path = self.path / "result.json"
        try:
            return durable.read_sealed(path)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            warnings.warn(f"{error}; the end of the run is computed again", stacklevel=2)
            return None

    def is_record(self) -> bool:
        """Whether this is what ``train.record`` keeps of a run that has ended: everything but its checkpoints."""
        return self.exists() and checkpoint.latest(self.checkpoints) is None and bool(self.about().get("record"))

    def finished(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a run that has come to its end, its folder put in order; None if there is more to say or do.

        Arguments:
            asked: configuration and recipe that it has to have.
        """
        if not self.exists():
            return None
        if self.is_record():  # in which nothing is written
            about, result = self.about(), self.result()
            ended = result is not None and result["state"] == "finished"
            return result if ended and difference({key: about[key] for key in asked}, asked) is None else None
        if not (self.path / "result.json").exists():
            return None  # not even the lock is written
        writable = os.access(self.path, os.W_OK)  # nobody writes a folder that cannot be written
        with self.held() if writable else contextlib.nullcontext():
            result = self.result()
            if result is None or result["state"] != "finished":
                return None
            about, found = self.about(), self.peek()
            if found is None or found[0].step != result["steps"] or same(about, found[0].about) is not None:
                return None
            if difference({key: about[key] for key in asked}, asked) is not None:
                return None
            if writable:
                self.take_up(about, found)
            return result

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Write a sealed document beside the others."""
        durable.write(self.path / name, durable.sealed(document))

    def read(self, name: str) -> dict[str, Any] | None:
        """A document that :meth:`write` wrote; None if it is missing or, with a warning, damaged."""
        try:
            return durable.read_sealed(self.path / name)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            warnings.warn(f"{error}; it is ignored", stacklevel=2)
            return None

    def last_checkpoint(self) -> str:
        """In words, for messages."""
        found = checkpoint.latest(self.checkpoints)
        return f"last good checkpoint: {found.with_suffix('.safetensors')}" if found else "no checkpoint yet"
