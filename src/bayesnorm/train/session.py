"""How a run goes: start or go on, train, save, finish."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from ..data.base import Data
from ..errors import DivergedError, RunError, StoppedError
from .checkpoint import Checkpoint
from .config import Config
from .engine import make_trainer
from .environment import changed, environment
from .events import Callback, EpochEnded, Event, Record, Saved, Started, Stepped
from .fused.dock import Dock
from .identity import same
from .lockstep import Pieces, drained
from .lr_search import LrSearch, Trial, as_json, from_json, searching
from .pace import Pace
from .run import Run
from .run_folder import RunFolder
from .shelf import Shelf
from .signals import Stop
from .snapshot import put_back, taken
from .state import digest, signature
from .trainer import Trainer
from .world import World

Result = TypeVar("Result")


@dataclass
class Session:
    """One call of ``fit`` or ``find_lr``: enter the folder, find the learning rate, go on, save, finish.

    Arguments:
        net: trained in place.
        data: on the device of the network.
        config: how.
        world: the processes that take part.
        stop: whether a signal has come, or the time is up.
        callbacks: called with events.
        recipe: stored with the run.
        stack: ends with the call; holds the lock of the folder.
        folder: of the run; None writes nothing.
        dock: where the trainers of a fleet meet.

    ``history`` and ``search`` are filled on the way; ``trainer`` is the one of the run itself, while it trains;
    ``spent`` are the seconds that it took so far, of several runs on one device its share of them.
    """

    net: nn.Module
    data: Data
    config: Config
    world: World
    stop: Stop
    callbacks: Sequence[Callback]
    recipe: dict[str, Any]
    stack: ExitStack
    folder: RunFolder | None = None
    dock: Dock | None = None
    history: list[Record] = field(default_factory=list)
    search: LrSearch | None = None
    trainer: Trainer | None = None
    spent: float = 0.0
    noted: float = 0.0
    saved: bool = False

    def __post_init__(self) -> None:
        self.pace = Pace(self.config)

    @property
    def disk(self) -> RunFolder | None:
        """The folder, in the process that writes it."""
        return self.folder if self.world.writes else None

    def find_lr(self, resume: bool) -> LrSearch:
        """The search alone."""
        self._alone(self._learning_rate(self._entered(resume)))
        self._note("search")
        assert self.search is not None
        return self.search

    def run(self, resume: bool) -> Run:
        """Start or go on, to the end."""
        return self._alone(self.running(resume))

    def _alone(self, pieces: Pieces[Result]) -> Result:
        """All of the time is spent on this run."""
        begin = time.monotonic()

        def after() -> None:
            self.spent = time.monotonic() - begin

        return drained(pieces, after)

    def running(self, resume: bool) -> Pieces[Run]:
        """The same in pieces: others begin their steps when it does, and look at them when it does."""
        stored = self._entered(resume)
        yield False  # of a fleet, all enter before one is trained
        lr = yield from self._learning_rate(stored)
        torch.manual_seed(self.config.seed)  # whatever the search has drawn
        trainer = self.trainer = make_trainer(self.net, self.data, self.config, lr, self.world, self.dock)
        put_back(trainer, stored)
        result = self.disk.result() if self.disk else None
        if result is not None and result["steps"] != trainer.step_count:
            result = None  # the end was reached, but its checkpoint is damaged
        try:
            if not self.world.agree(int(result is not None)):
                yield from self._train(trainer)
                result = self._finish(trainer)
        finally:
            self.trainer = None
            trainer.release()
        self.net.eval()
        path = None if self.folder is None else self.folder.path
        return Run(self.net, self.config, lr, self.history, result or {}, self.search, path)

    def _entered(self, resume: bool) -> Checkpoint | None:
        """What rank 0 found in the folder; if it may not use it, no process goes on."""
        stored, refused = None, None
        if self.disk is not None:
            try:
                self.stack.enter_context(self.disk.held())
                stored = self._enter(self.disk, resume)
            except Exception as error:
                refused = error
        if self.world.agree(int(refused is not None)):
            raise refused or RunError("the first process may not use the run folder; it says why")
        return stored

    def _enter(self, folder: RunFolder, resume: bool) -> Checkpoint | None:
        """Begin a run in the folder, or make sure that it is this one and take up its last state."""
        about = {
            "config": self.config.as_dict(),
            "recipe": self.recipe,
            "data": self._data(),
            "network": signature(self.net),
        }
        now = environment(self.world.device, self.world.size)
        if not folder.exists():
            folder.refuse_lost()
            folder.begin({**about, "environment": now})
            self.stack.push(self._unless_refused)
            folder.diary.note("start", step=0, pid=os.getpid())
            return None
        if not resume:
            folder.refuse_taken()
        stored = folder.about()
        self._compare(folder, stored, about)
        found = folder.peek()
        if found is not None:
            self._compare_checkpoint(found[0], stored)
        elif (folder.result() or {}).get("state") == "finished":
            raise RunError(
                f"{folder.path} is finished, but its checkpoints are gone: restore them, or delete the folder"
            )
        else:
            folder.refuse_lost()
        if found is not None and folder.diary.saved_at() > found[0].step and folder.is_last(found[0]):
            gone = f"{folder.path} had been saved at step {folder.diary.saved_at()}, but that checkpoint is gone"
            warnings.warn(f"{gone}: it goes on from step {found[0].step}", stacklevel=2)
        moved = changed(stored["environment"], now)
        if moved is not None:
            warnings.warn(f"{moved}: the resumed run may differ in the last digits", stacklevel=2)
        folder.take_up(stored, found)
        folder.diary.note("start", step=found[0].step if found else 0, pid=os.getpid())
        if found is None:
            return None
        self.history = found[1]
        return found[0]

    def _unless_refused(self, kind: object, error: BaseException | None, trace: object) -> None:
        """What turned out to be no run before anything was trained leaves none, so that it can be put right."""
        if isinstance(error, ValueError) and not isinstance(error, StoppedError | DivergedError):
            assert self.disk is not None
            self.disk.forget()

    def _data(self) -> dict[str, Any]:
        """Images, targets and objects by their digests, and what is done to the images on the way."""
        augment = {**dataclasses.asdict(self.data.augment), "validation": self.data.augment_val}
        said = {"name": self.data.name, "digest": self.data.digest(), "augment": augment}
        objects = self.data.objects_digest()
        return said if objects is None else {**said, "objects": objects}

    def _compare(self, folder: RunFolder, stored: dict[str, Any], about: dict[str, Any]) -> None:
        found = same(stored, about)
        if found is not None and found.startswith("data.digest"):
            raise RunError(
                f"{folder.path} was begun with other data than what is there now: put its files back, or choose "
                "another --out"
            )
        if found is not None:
            raise RunError(f"{folder.path} is another run: {found}; repeat its options, or choose another --out")
        result = folder.result()
        if result is not None and result["state"] == "diverged":
            raise DivergedError(f"{folder.path}: {result['message']}; then choose another --out")

    def _compare_checkpoint(self, checkpoint: Checkpoint, stored: dict[str, Any]) -> None:
        found = same(stored, checkpoint.about)
        if found is not None:
            raise RunError(
                f"{checkpoint.path} is of another run: {found} there; put the checkpoints of this run back, or choose "
                "another --out"
            )

    def _learning_rate(self, stored: Checkpoint | None) -> Pieces[float]:
        """As given, or as found: now, or before the run was interrupted."""
        if self.config.lr != "auto":
            return float(self.config.lr)
        complete = self.world.agree(int(stored is not None))
        if stored is not None:
            trials = from_json(stored.counters["trials"])
        else:
            document = self.disk.read("lr_search.json") if self.disk else None
            trials = from_json(document["trials"] if document else None)
        known = self._shared(trials)
        if complete:
            self.search = LrSearch(known)
            return self.search.best

        def tried(found: LrSearch) -> None:
            if self.disk is not None:
                self.disk.write("lr_search.json", {"trials": as_json(found.trials)})
                self._note_time()

        training = (self.net, self.data, self.config, self.world)
        shelf = Shelf(self.disk, self.config, self._note_time)
        try:
            self.search = yield from searching(
                *training, known, tried, self._emit, self._wants_to_stop, self.dock, shelf
            )
        except InterruptedError:
            raise self._stopped("during the learning-rate search, whose trials are kept") from None
        except DivergedError as error:
            if self.disk is not None:
                self.disk.finish({"state": "diverged", "message": str(error), "step": 0, "lr": None})
                self._note("diverge", step=0)
            raise
        return self.search.best

    def _shared(self, known: tuple[Trial, ...]) -> tuple[Trial, ...]:
        """Trials that rank 0 read, in all processes."""
        count = self.world.agree(len(known))
        values = torch.tensor([[t.lr, t.loss] for t in known] or [[0.0, 0.0]] * count, dtype=torch.float64)
        self.world.share([values])
        return tuple(Trial(*row) for row in values.tolist()[:count])

    def _train(self, trainer: Trainer) -> Pieces[None]:
        steps, epochs = len(trainer.batches), self.config.epochs
        self._emit(Started(self.net, trainer.lr, trainer.step_count, trainer.epoch, epochs, steps))
        while trainer.epoch < epochs:
            stopping = False
            while trainer.batch < steps and not stopping:
                yield False
                trainer.begin()
                yield True
                stopping = self._step(trainer)
                self._emit(Stepped(trainer.step_count, trainer.running_loss))
                if stopping or (trainer.batch < steps and self.pace.due(trainer.step_count)):
                    self._save(trainer, goes_on=not stopping)
            if stopping:
                raise self._stopped(f"after step {trainer.step_count}", step=trainer.step_count)
            record = trainer.measure()
            trainer.next_epoch()
            self.history.append(record)
            if self.disk is not None:
                self.disk.append(record)
            self._emit(EpochEnded(self.net, record))
            stopping = float(self.world.total(torch.tensor([float(self._wants_to_stop())]))) > 0
            if stopping or self.pace.due(trainer.step_count) or trainer.epoch == epochs:
                self._save(trainer, goes_on=not stopping and trainer.epoch < epochs)
            if stopping:
                raise self._stopped(f"after step {trainer.step_count}", step=trainer.step_count)

    def _step(self, trainer: Trainer) -> bool:
        try:
            return trainer.step(self._wants_to_stop())
        except DivergedError as error:
            if self.disk is None:
                raise
            message = f"{error} ({self.disk.last_checkpoint()})"
            self.disk.finish({"state": "diverged", "message": message, "step": trainer.step_count, "lr": trainer.lr})
            self._note("diverge", step=trainer.step_count)
            raise DivergedError(message) from None

    def _wants_to_stop(self) -> bool:
        return self.stop.wanted

    def _stopped(self, where: str, **values: Any) -> StoppedError:
        how = "pass --resume to go on" if self.folder else "nothing was saved, as there is no run folder"
        self._note("stop", signal=self.stop.number, **values)
        return StoppedError(f"{self.stop.why} {where}: {how}", self.stop.number, self.stop.why)

    def _note(self, event: str, **values: Any) -> None:
        """A line in the diary of the run, with the seconds since the last that has some."""
        if self.disk is not None:
            self.disk.diary.note(event, **values, seconds=round(self.spent - self.noted, 3))
            self.noted = self.spent

    def _note_time(self) -> None:
        """Now and then, so that the time of a process that is killed is not lost."""
        if self.spent - self.noted >= self.config.checkpoint_seconds > 0:
            self._note("time")

    def _save(self, trainer: Trainer, goes_on: bool) -> None:
        self.pace.saved()
        if self.disk is not None:
            counters = {
                **trainer.counters(),
                "lr": trainer.lr,
                "trials": as_json(self.search.trials) if self.search else None,
            }
            path = self.disk.save(trainer.step_count, counters, taken(trainer), self.history)
            if goes_on and not self.saved:  # once, so that the diary of a killed run says that there were checkpoints
                self._note("save", step=trainer.step_count)
                self.saved = True
            self._note_time()
            self._emit(Saved(trainer.step_count, path))

    def _finish(self, trainer: Trainer) -> dict[str, Any]:
        result = {
            "state": "finished",
            "epochs": trainer.epoch,
            "steps": trainer.step_count,
            "lr": trainer.lr,
            "digest": digest(trainer.tensors()),
        }
        if self.history:  # only the process that writes has that of a resumed run
            result |= {key: self.history[-1][key] for key in ("train_nll", "val_nll", "val_accuracy", "val_ece")}
        if self.disk is not None:
            self.disk.finish(result)
            self._note("finish", step=trainer.step_count)
        return result

    def _emit(self, event: Event) -> None:
        if self.world.writes:
            for callback in self.callbacks:
                callback(event)
