"""Where the runs of a reproduction are trained, each once, and looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from .. import bn_noise
from ..data.base import Data
from ..errors import DataError, DivergedError, RunError, StoppedError
from ..evaluate.baselines import training_batches
from ..train import load
from ..train.defaults import resolve
from ..train.documents import (
    SAMPLES,
    Document,
    Trained,
    evaluation,
    evaluation_name,
    recorded,
    robustness,
    stored,
    stored_evaluation,
)
from ..train.events import Callback, Record
from ..train.job import Job, Shelf, complete, complete_together, known_lr, search
from ..train.recipe import NO_FILES, Recipe
from ..train.run_folder import RunFolder
from ..train.workers import side_by_side
from .preset import Preset
from .wanted import Wanted

Show = Callable[[Sequence[str]], AbstractContextManager[dict[str, Callback]]]
"""Opens the display of the runs of these names."""


@dataclass(frozen=True)
class Lab:
    """Trains what is wanted and answers questions about it.

    Arguments:
        out: folder of figures and tables.
        preset: how thoroughly.
        directory: of CIFAR-10, where the preset uses it.
        cells: folder of the cell images, likewise.
        device: where to train.
        at_once: processes; 1 trains in this one.
        show: opens a display of progress.
        runs: folder of the runs; None: ``out/runs``.
        fleet: train the runs that wait for no other as one fleet in this process; learning rates that several share are
            found before.
        stop_at: time, by ``time.monotonic``, at which to stop as by a signal.
    """

    out: Path
    preset: Preset
    show: Show
    directory: Path | None = None
    cells: Path | None = None
    device: str = "cpu"
    at_once: int = 1
    runs: Path | None = None
    fleet: bool = False
    stop_at: float | None = None

    def complete(self, wanted: Iterable[Wanted]) -> None:
        """As :meth:`train`; DivergedError if one of them, or one that it needs, diverged."""
        whole = list(dict.fromkeys(wanted))
        self.train(whole)
        for run in whole:
            lost = self.lost(run)
            if lost is not None:
                why = (self.folder(lost).result() or {})["message"]
                raise DivergedError(f"{lost.name(self.preset)}: {why}")

    def lost(self, run: Wanted) -> Wanted | None:
        """The run itself, or one that it needs, if it diverged; a run that got to its end needs none any more."""
        state = (self.folder(run).result() or {}).get("state")
        if state in ("diverged", "finished"):
            return run if state == "diverged" else None
        return next((lost for other in run.needs if (lost := self.lost(other)) is not None), None)

    def train(self, wanted: Iterable[Wanted]) -> None:
        """Train and evaluate all that is not finished yet, a run after those that it needs; what diverges stays so."""
        whole = list(dict.fromkeys(other for run in wanted for other in run.whole))
        for run in whole:
            if self.lost(run) is None and not self.is_done(run):  # what is missing is said before others are trained
                if self.folder(run).is_record():
                    self.job(run).refuse_record()
                self._refuse_records(run)
                try:
                    self.place(run.cells)
                except DataError as error:
                    if self.runs is None or not self.runs.exists():
                        raise
                    raise DataError(f"{self.runs} has no finished run {run.name(self.preset)}: {error}") from None
        if self.fleet:
            self._search(list(dict.fromkeys(run.lr_of for run in whole if run.lr_of is not None)))
        levels = {run: self._level(run) for run in whole}
        for level in sorted(set(levels.values())):
            self._train([run for run in whole if levels[run] == level])

    def _refuse_records(self, missing: Wanted) -> None:
        """Records are drawn from: no run is trained among them."""
        place = self.folder(missing).path.parent
        if any(RunFolder(path).is_record() for path in (place.iterdir() if place.is_dir() else ()) if path.is_dir()):
            raise RunError(
                f"{place} holds records of runs, and {missing.name(self.preset)} is not among them: record that run "
                "too, or name another folder with --runs, where it is trained"
            )

    def _search(self, runs: Sequence[Wanted]) -> None:
        """Find the learning rates that others take over, so that these need not wait for the end of the runs."""
        shelf: Shelf = {}
        for run in runs:
            if run.needs or self._lr(run) is not None or self.lost(run) is not None:
                continue
            name = run.name(self.preset)
            with self.show([name]) as callbacks, suppress(DivergedError):
                _going_on(search, self.job(run), callbacks[name], shelf, self.stop_at, who=f"{name}: ")

    def _lr(self, run: Wanted) -> float | None:
        """The learning rate of a run that needs no other, or is finished, as far as it is known."""
        return None if run.needs and not self.is_done(run) else known_lr(self.job(run))

    def _level(self, run: Wanted) -> int:
        """How many runs have to be trained before, one after the other; of some only the learning rate is needed."""
        waits = [other for other in run.needs if other is not run.lr_of or self._lr(other) is None]
        return max((self._level(other) + 1 for other in waits), default=0)

    def _train(self, runs: Sequence[Wanted]) -> None:
        """Those of one level: what they need is finished, or has diverged."""
        jobs = {run.name(self.preset): self.job(run) for run in runs if self.lost(run) is None}
        missing = {name: job for name, job in jobs.items() if not job.is_done()}
        if not missing:
            return
        with self.show(list(missing)) as callbacks:
            if self.fleet:
                _together(missing, callbacks, self.stop_at)
            elif self.at_once == 1:
                for name, job in missing.items():
                    _alone(name, job, callbacks[name], self.stop_at)
            else:
                side_by_side(list(missing), _in_its_process, (missing,), callbacks, self.at_once, stop_at=self.stop_at)

    def is_done(self, run: Wanted) -> bool:
        """Whether a run is trained and evaluated, with the settings of the preset."""
        return all(self.is_done(other) for other in run.needs) and self.job(run).is_done()

    def job(self, run: Wanted) -> Job:
        """What is trained for a run; those that it needs are finished, or their learning rate is known."""
        settings = {**run.settings(self.preset), **self._directory(run.cells)}
        if run.lr_of is not None:
            settings["lr"] = self._lr(run.lr_of)
        if run.noise_of is not None:
            noise = self.bn_noise(run.noise_of)["trained"]
            settings |= {"sigma_u": tuple(noise["sigma_u"]), "sigma_v": tuple(noise["sigma_v"])}
        return Job(self.folder(run).path, settings, SAMPLES, self.device)

    def folder(self, run: Wanted) -> RunFolder:
        """Of a run."""
        return RunFolder((self.runs or self.out / "runs") / run.name(self.preset))

    def _directory(self, cells: bool) -> dict[str, Any]:
        """As :meth:`place`, for runs that may be finished: whether it is there is not asked."""
        name = self.preset.settings(cells, "none")["data"]
        return {} if name in NO_FILES else {"directory": str((self.cells if cells else self.directory) or name)}

    def place(self, cells: bool) -> dict[str, Any]:
        """Where the data of the classification runs is, or that of the cells, as a setting."""
        name = self.preset.settings(cells, "none")["data"]
        if name in NO_FILES:
            return {}
        place, option = (self.cells, "--cells-dir") if cells else (self.directory, "--dir")
        if place is None:
            raise DataError(
                f"--preset {self.preset.name} needs {option}, the folder of {name}; or choose --preset smoke"
            )
        if not place.is_dir():
            raise DataError(f"{option} {place}: there is no such folder; give that of {name}")
        return {"directory": str(place)}

    def data(self, cells: bool = False) -> Data:
        """The data set of the classification runs, or that of the cells."""
        recipe, _ = resolve({**self.preset.settings(cells, "none"), "norm": "none", **self.place(cells)})
        return Recipe(**recipe).load()

    def trained(self, run: Wanted) -> Trained:
        """Network and data of a finished run."""
        return Trained.of(load(self.folder(run).path, self.place(run.cells).get("directory"), self.device))

    def history(self, run: Wanted) -> list[Record]:
        """A record per epoch."""
        return self.folder(run).history()

    def test(self, run: Wanted) -> Document:
        """Its evaluation on the test set."""
        return stored_evaluation(self.folder(run), "test")

    def validation(self, run: Wanted, samples: int = 10) -> Document:
        """Its evaluation on the validation set."""
        name, settings = evaluation_name("val"), {"samples": samples}
        return self._asked(run, name, settings, lambda trained: evaluation(trained, "val", samples))

    def robustness(self, run: Wanted) -> Document:
        """Its metrics under noise and attack."""
        limit = self.preset.robustness
        settings = {} if limit is None else {"count": limit}
        return self._asked(run, "robustness-test.json", settings, lambda trained: robustness(trained, limit=limit))

    def found_out(self, run: Wanted, name: str, settings: Document, make: Callable[[Trained], Document]) -> Document:
        """What was found out about a run with these settings, made of its network unless it is stored."""
        return self._asked(run, name, settings, lambda trained: stored(trained, name, settings, lambda: make(trained)))

    def _asked(self, run: Wanted, name: str, settings: Document, ask: Callable[[Trained], Document]) -> Document:
        """A document about a run: that of its record, or what its network answers."""
        folder = self.folder(run)
        return recorded(folder, name, settings) if folder.is_record() else ask(self.trained(run))

    def bn_noise(self, run: Wanted) -> Document:
        """Std of U and V per layer of a batch-normalized run, mean over channels, at the start and at the end."""
        count = self.preset.noise_batches

        def make(trained: Trained) -> Document:
            batch, seed = trained.config.batch, trained.config.seed
            recipe, _ = self.job(run).resolved()
            initial = recipe.build(trained.data, seed, trained.data.device)
            found = {}
            for name, net in (("initial", initial), ("trained", trained.net)):
                measured = bn_noise.measure(net, islice(training_batches(trained.data, batch, seed), count))
                found[name] = {
                    "sigma_u": [layer.sigma_u.mean().item() for layer in measured.values()],
                    "sigma_v": [layer.sigma_v.mean().item() for layer in measured.values()],
                }
            return {"layers": list(measured), **found}

        return self.found_out(run, "bn-noise.json", {"batches": count}, make)


def _alone(name: str, job: Job, emit: Callback, stop_at: float | None) -> None:
    """Complete a job in this process. One that diverges is stored so."""
    with suppress(DivergedError):
        _going_on(complete, job, emit, stop_at, who=f"{name}: ")


def _together(jobs: Mapping[str, Job], emit: Mapping[str, Callback], stop_at: float | None) -> None:
    """Complete jobs as a fleet, likewise."""
    _going_on(complete_together, jobs, emit, stop_at)


def _going_on(work: Callable[..., object], *arguments: Any, who: str = "") -> None:
    """Do the work; stopped, it says how a reproduction goes on."""
    try:
        work(*arguments)
    except StoppedError as error:
        raise StoppedError(f"{who}{error.why}: the same command goes on", error.signal, error.why) from None


def _in_its_process(name: str, emit: Callback, jobs: Mapping[str, Job]) -> None:
    """Complete the job of that name; one that diverges is stored so, and does not end the others."""
    with suppress(DivergedError):
        complete(jobs[name], emit)
