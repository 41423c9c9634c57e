"""The learning rate that minimizes the training loss after a few epochs, as the paper chooses it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..data.base import Data
from ..errors import DivergedError
from .config import Config
from .engine import make_trainer
from .events import Callback, Trying
from .trainer import Trainer
from .world import World

WORST = 1e3
"""Stands for infinity where the search needs a number to compare; losses per sample are far below."""


@dataclass(frozen=True)
class Trial:
    """Training NLL of the last epoch with one learning rate, infinite if it diverged."""

    lr: float
    loss: float


@dataclass(frozen=True)
class LrSearch:
    """All trials, in the order made, and the best learning rate."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> float:
        """The learning rate of the lowest loss."""
        return min(self.trials, key=lambda trial: trial.loss).lr


def as_json(trials: tuple[Trial, ...]) -> list[dict[str, float | None]]:
    """For a file; an infinite loss is null."""
    return [{"lr": t.lr, "loss": t.loss if math.isfinite(t.loss) else None} for t in trials]


def from_json(trials: list[dict[str, Any]] | None) -> tuple[Trial, ...]:
    """What ``as_json`` wrote; nothing for None."""
    return tuple(Trial(t["lr"], math.inf if t["loss"] is None else t["loss"]) for t in trials or ())


def search(
    net: nn.Module,
    data: Data,
    config: Config,
    world: World,
    known: tuple[Trial, ...] = (),
    tried: Callable[[LrSearch], None] = lambda search: None,
    emit: Callback = lambda event: None,
    stopping: Callable[[], bool] = lambda: False,
) -> LrSearch:
    """Bounded scalar search over log10 lr; every trial starts from a copy of the network, with the same seed.

    Arguments:
        net: in its initial state; it is not changed.
        known: trials made before, which are not repeated.
        tried: called after each trial.
        emit: called with the steps of the trials.
        stopping: asked at every step whether to stop; if so, ``InterruptedError`` is raised.
    """
    from scipy.optimize import minimize_scalar

    trials: list[Trial] = []

    def loss(exponent: float) -> float:
        if len(trials) >= config.lr_trials:  # scipy makes one more than it was allowed
            raise StopIteration
        lr = float(10.0**exponent)
        trial = next((t for t in known if math.isclose(t.lr, lr, rel_tol=1e-12)), None)
        if trial is None:
            stepped = _Steps(emit, len(trials) + 1, config.lr_trials, lr)
            trial = Trial(lr, _train(net, data, config, lr, world, stepped, stopping))
        trials.append(trial)
        tried(LrSearch(tuple(trials)))
        # The larger the step, the worse its divergence: the search then turns to smaller ones.
        return min(trial.loss, WORST) if math.isfinite(trial.loss) else WORST * (2 + exponent - bounds[0])

    bounds = (math.log10(config.lr_low), math.log10(config.lr_high))
    with suppress(StopIteration):
        minimize_scalar(loss, bounds=bounds, method="bounded", options={"maxiter": config.lr_trials, "xatol": 0.02})
    found = LrSearch(tuple(trials))
    if not any(math.isfinite(trial.loss) for trial in trials):
        raise DivergedError(
            f"training diverges at every learning rate between {config.lr_low:g} and {config.lr_high:g}: pass a "
            "smaller --lr-low, or --clip 1"
        )
    return found


@dataclass(frozen=True)
class _Steps:
    """Tells of the steps of one trial."""

    emit: Callback
    trial: int
    trials: int
    lr: float

    def __call__(self, trainer: Trainer) -> None:
        done = trainer.step_count / (trainer.config.lr_epochs * len(trainer.batches))
        self.emit(Trying(self.trial, self.trials, self.lr, done, trainer.running_loss))


def _train(
    net: nn.Module,
    data: Data,
    config: Config,
    lr: float,
    world: World,
    stepped: Callable[[Trainer], None],
    stopping: Callable[[], bool],
) -> float:
    torch.manual_seed(config.seed)
    trainer = make_trainer(copy.deepcopy(net), data, config, lr, world)
    last = 0.0
    try:
        for _ in range(config.lr_epochs):
            while trainer.batch < len(trainer.batches):
                if trainer.step(stopping()):
                    raise InterruptedError
                stepped(trainer)
            last = trainer.sums["nll"] / trainer.sums["count"]
            trainer.next_epoch()
    except DivergedError:
        return math.inf
    return last
