"""A run that is described in full: trained, resumed or found finished, then evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ._fit import fit
from .config import Config
from .documents import Trained, evaluation, final_evaluation
from .events import Callback
from .recipe import Recipe, prepare, resolve
from .run_folder import RunFolder


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


def complete(job: Job, emit: Callback) -> Trained:
    """Train or go on, to the end, and evaluate; what is done already is not done again."""
    recipe, config = job.resolved()
    data, net = prepare(recipe, config, torch.device(job.device))
    run = fit(net, data, config, out=job.path, resume=True, callbacks=[emit], recipe=recipe.as_dict())
    trained = Trained(job.folder, net, data, config, run.result["steps"])
    evaluation(trained, "test", job.samples)
    return trained


def complete_named(name: str, emit: Callback, jobs: Mapping[str, Job]) -> None:
    """The job of that name, in a process of its own."""
    complete(jobs[name], emit)
