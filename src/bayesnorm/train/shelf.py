"""Unfinished trials of a learning-rate search on disk, so that a stop loses none of their steps."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from ..errors import RunError
from . import checkpoint
from .checkpoint import Checkpoint
from .config import Config
from .identity import same
from .pace import Pace
from .run_folder import TRIALS, RunFolder
from .snapshot import put_back, taken
from .trainer import Trainer


class Shelf:
    """A folder for each trial that has not ended, with checkpoints as a run has them.

    Arguments:
        folder: of the run; None, where nothing is written, keeps nothing.
        config: how often.
        kept: called after each checkpoint.
    """

    def __init__(self, folder: RunFolder | None, config: Config, kept: Callable[[], None] = lambda: None) -> None:
        self.folder, self.config, self.kept = folder, config, kept
        self.about = {} if folder is None else folder.about()
        self.paces: dict[int, Pace] = {}

    def resume(self, number: int, trainer: Trainer) -> None:
        """Put a trial back to where it was, in all processes, if it was begun before."""
        self.paces[number] = Pace(self.config)
        found = self._find(number, trainer.lr)
        if trainer.world.agree(int(found is not None)):
            put_back(trainer, found)

    def stepped(self, number: int, trainer: Trainer) -> None:
        """After each step of a trial: keep it, if that is due."""
        if self.paces[number].due(trainer.step_count):
            self.keep(number, trainer)

    def keep(self, number: int, trainer: Trainer) -> None:
        """Make the state of a trial durable."""
        self.paces[number].saved()
        if self.folder is not None:
            counters = {**trainer.counters(), "lr": trainer.lr}
            checkpoint.save(
                self._path(self.folder, number),
                Checkpoint(trainer.step_count, counters, taken(trainer), self.about),
            )
            self.kept()

    def drop(self, number: int) -> None:
        """The trial has ended."""
        if self.folder is not None:
            shutil.rmtree(self._path(self.folder, number), ignore_errors=True)

    def clear(self) -> None:
        """The search has ended."""
        if self.folder is not None:
            shutil.rmtree(self.folder.path / TRIALS, ignore_errors=True)

    def _find(self, number: int, lr: float) -> Checkpoint | None:
        if self.folder is None:
            return None
        path = self._path(self.folder, number)
        try:
            found = checkpoint.load(path)
        except RunError as error:
            warnings.warn(f"trial {number} of the learning-rate search begins anew: {error}", stacklevel=2)
            self.drop(number)
            return None
        if found is None:
            orphan = checkpoint.orphan(path)
            if orphan is not None and orphan.stem != checkpoint.FIRST:
                again = f"trial {number} of the learning-rate search begins anew"
                warnings.warn(f"{again}: {orphan} has no manifest", stacklevel=2)
            return None
        if same(self.about, found.about) is not None or not math.isclose(found.counters["lr"], lr, rel_tol=1e-12):
            warnings.warn(f"{path} is of another search; trial {number} begins anew", stacklevel=2)
            self.drop(number)
            return None
        checkpoint.clean(path, found.path)
        return found

    @staticmethod
    def _path(folder: RunFolder, number: int) -> Path:
        return folder.path / TRIALS / str(number)
