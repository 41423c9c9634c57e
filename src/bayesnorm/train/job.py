"""Runs that are described in full: trained, resumed or found finished, then evaluated."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.base import Data
from ..errors import DivergedError, RunError, StoppedError
from ._fit import find_lr, fit
from .config import Config
from .defaults import resolve
from .documents import Trained, evaluation, final_evaluation
from .events import Callback
from .fleet import SHARED, Member, fit_fleet
from .identity import difference
from .lr_search import LrSearch, from_json
from .numerics import numerics
from .recipe import Recipe, prepare
from .run_folder import RunFolder

DATA = ("data", "directory", "split_seed", "image_size", "augment", "standardize", "masks", "cell_split", "reduce")
"""Settings that decide which data a run has: runs that agree in them share it."""

Shelf = dict[str, Data]
"""Data that was read before, on its device."""


@dataclass(frozen=True)
class Job:
    """What to train, where.

    Arguments:
        path: folder of the run.
        settings: of :class:`Recipe` and :class:`Config`, as far as they are not those of the data set.
        samples: draws of the evaluation on the test set.
        device: where it is trained.
    """

    path: Path
    settings: dict[str, Any]
    samples: int = 30
    device: str = "cpu"

    def resolved(self) -> tuple[Recipe, Config]:
        """The settings in full."""
        recipe, config = resolve(self.settings)
        return Recipe(**recipe), Config.from_dict(config)

    @property
    def folder(self) -> RunFolder:
        """Of the run."""
        return RunFolder(self.path)

    def is_done(self) -> bool:
        """Whether the run is finished and evaluated."""
        recipe, config = self.resolved()
        result = self.folder.finished({"config": config.as_dict(), "recipe": recipe.as_dict()})
        found = None if result is None else final_evaluation(self.folder, result)
        return found is not None and found["samples"] == self.samples

    def refuse_record(self) -> None:
        """RunError that says why the record of a run, which cannot go on, does not do the job."""
        recipe, config = self.resolved()
        about, asked = self.folder.about(), {"config": config.as_dict(), "recipe": recipe.as_dict()}
        other = difference({key: about[key] for key in asked}, asked)
        if other is not None:
            raise RunError(f"{self.path} is the record of another run: {other}; choose another --runs")
        raise RunError(
            f"{self.path} is a record without an evaluation on the test set with {self.samples} draws: `bayesnorm "
            "eval` the run itself and record that again"
        )


def complete(job: Job, emit: Callback, stop_at: float | None = None) -> Trained:
    """Train or go on, to the end, and evaluate; what is done already is not done again.

    Arguments:
        stop_at: time, by ``time.monotonic``, at which to stop as by a signal.
    """
    recipe, config = job.resolved()
    data, net = prepare(recipe, config, torch.device(job.device))
    options: dict[str, Any] = {"out": job.path, "resume": True, "recipe": recipe.as_dict(), "stop_at": stop_at}
    run = fit(net, data, config, callbacks=[emit], **options)
    trained = Trained(job.folder, net, data, config, run.result["steps"])
    evaluation(trained, "test", job.samples)
    return trained


def complete_named(name: str, emit: Callback, jobs: Mapping[str, Job]) -> None:
    """The job of that name, in a process of its own."""
    complete(jobs[name], emit)


def complete_together(jobs: Mapping[str, Job], emit: Mapping[str, Callback], stop_at: float | None = None) -> None:
    """Complete jobs side by side in this process, on one device; one that diverges is stored so and stops alone.

    Jobs of other data or numerics come in a fleet of their own, one after the other.

    Arguments:
        jobs: by name.
        emit: called with the events of each.
        stop_at: time, by ``time.monotonic``, at which to stop as by a signal.
    """
    fleets: dict[str, dict[str, Job]] = {}
    for name, job in jobs.items():
        fleets.setdefault(_kind(job), {})[name] = job
    shelf: Shelf = {}
    for fleet in fleets.values():
        members = {name: member_of(*job.resolved(), job.path, job.device, shelf) for name, job in fleet.items()}
        runs = fit_fleet(members, resume=True, callbacks={name: [emit[name]] for name in fleet}, stop_at=stop_at)
        for name, run in runs.items():
            if isinstance(run, DivergedError):
                continue
            refuse_late(stop_at)
            member = members[name]
            trained = Trained(fleet[name].folder, run.net, member.data, member.config, run.result["steps"])
            evaluation(trained, "test", fleet[name].samples)


def search(job: Job, emit: Callback, shelf: Shelf, stop_at: float | None = None) -> None:
    """Only find the learning rate, for a job that asks for that and is not begun or was interrupted."""
    recipe, config = job.resolved()
    member = member_of(recipe, config, job.path, job.device, shelf)
    options: dict[str, Any] = {"out": job.path, "resume": True, "recipe": member.recipe, "stop_at": stop_at}
    find_lr(member.net, member.data, config, callbacks=[emit], **options)


def known_lr(job: Job) -> float | None:
    """The learning rate of a job as far as it is known: given, or found by a search that is over."""
    return lr_of(job.folder, job.resolved()[1])


def lr_of(folder: RunFolder, config: Config) -> float | None:
    """As :func:`known_lr`, of a run with this configuration."""
    if config.lr != "auto":
        return float(config.lr)
    result = folder.result() or {}
    if result.get("state") == "finished":
        return float(result["lr"])
    trials = from_json((folder.read("lr_search.json") or {}).get("trials"))
    return LrSearch(trials).best if len(trials) == config.lr_trials else None


def refuse_late(stop_at: float | None) -> None:
    """StoppedError if the time is up."""
    if stop_at is not None and time.monotonic() >= stop_at:
        why = "stopped by the time limit"
        raise StoppedError(f"{why}: the same command goes on", 15, why)


def member_of(recipe: Recipe, config: Config, out: Path, device: torch.device | str, shelf: Shelf) -> Member:
    """A run as a member of a fleet, its data shared with those that have the same."""
    place = torch.device(device)
    key = _data(recipe)
    data = shelf[key] = shelf.get(key) or recipe.load().to(place)
    with numerics(config, place):
        net = recipe.build(data, config.seed, place)
    return Member(net, data, config, out, recipe.as_dict())


def _kind(job: Job) -> str:
    """Equal for jobs that are trained as one fleet."""
    recipe, config = job.resolved()
    numeric = {name: getattr(config, name) for name in SHARED}
    return json.dumps([job.device, _data(recipe), numeric])


def _data(recipe: Recipe) -> str:
    return json.dumps({field: recipe.as_dict()[field] for field in DATA})
