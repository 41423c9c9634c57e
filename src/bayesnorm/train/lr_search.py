"""The learning rate that minimizes the training loss after a few epochs, as the paper chooses it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from ..data.base import Data
from ..errors import DivergedError
from .config import Config
from .engine import make_trainer
from .events import Callback, Tried, Trying
from .fused.dock import Dock
from .lockstep import Pieces, Turn, stepping
from .optimizer import Schedule
from .shelf import Shelf
from .trainer import Trainer
from .world import World

TOGETHER = 4
"""Trials of a round. Even: both sides of the best one so far get the same number."""
REACHED = 0.5
"""Least part of the run's highest learning rate that a trial has to get to, or it says nothing about the run."""


@dataclass(frozen=True)
class Trial:
    """Training NLL of the last epoch with one learning rate, infinite if it diverged."""

    lr: float
    loss: float


@dataclass(frozen=True)
class LrSearch:
    """All trials, round by round and from small to large learning rates in each, and the best learning rate."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> float:
        """The learning rate of the lowest loss, the smallest such."""
        return min(self.trials, key=lambda trial: (trial.loss, trial.lr)).lr


def as_json(trials: tuple[Trial, ...]) -> list[dict[str, float | None]]:
    """For a file; an infinite loss is null."""
    return [{"lr": t.lr, "loss": t.loss if math.isfinite(t.loss) else None} for t in trials]


def from_json(trials: list[dict[str, Any]] | None) -> tuple[Trial, ...]:
    """What ``as_json`` wrote; nothing for None."""
    return tuple(Trial(t["lr"], math.inf if t["loss"] is None else t["loss"]) for t in trials or ())


def searching(
    net: nn.Module,
    data: Data,
    config: Config,
    world: World,
    known: tuple[Trial, ...] = (),
    tried: Callable[[LrSearch], None] = lambda search: None,
    emit: Callback = lambda event: None,
    stopping: Callable[[], bool] = lambda: False,
    dock: Dock | None = None,
    shelf: Shelf | None = None,
) -> Pieces[LrSearch]:
    """Section search over log10 lr, ``TOGETHER`` trials a round: between the bounds, then closer around the best.

    Every trial starts from a copy of the network, with the same seed. On CUDA those of a round are trained side by
    side; each is, to the last bit, what it would be alone.

    Arguments:
        net: in its initial state; it is not changed.
        known: trials made before, which are not repeated.
        tried: called after each trial that was not known, with all that are over.
        emit: called with the steps of the trials, and with each trial that is over.
        stopping: asked at every step whether to stop; if so, ``InterruptedError`` is raised.
        dock: where the trials meet those of other searches; None: each other only.
        shelf: where trials that have not ended are kept; None: nowhere.
    """
    shelf = shelf or Shelf(None, config)
    places: list[float] = []
    trials: dict[int, Trial] = {}

    def over(number: int, trial: Trial) -> None:
        trials[number] = trial
        if trial not in known:
            tried(LrSearch(tuple(trials[n] for n in sorted(trials))))
        shelf.drop(number)
        emit(Tried(number, config.lr_trials, trial.lr, trial.loss))

    while len(places) < config.lr_trials:
        losses = {place: trials[number].loss for number, place in enumerate(places, 1)}
        fresh = next_round(losses, config, min(TOGETHER, config.lr_trials - len(places)))
        rates = {number: float(10.0**place) for number, place in enumerate(fresh, len(places) + 1)}
        places += fresh
        for number, lr in list(rates.items()):
            before = [trial for trial in known if math.isclose(trial.lr, lr, rel_tol=1e-12)]
            if before:
                del rates[number]
                over(number, before[0])
        for group in _groups(rates, _at_once(world)):
            dock = Dock() if dock is None else dock
            yield from _train(net, data, config, world, group, over, emit, stopping, dock, shelf)
    shelf.clear()
    found = LrSearch(tuple(trials[number] for number in sorted(trials)))
    if not any(math.isfinite(trial.loss) for trial in found.trials):
        raise DivergedError(
            f"training diverges at every learning rate between {config.lr_low:g} and {config.lr_high:g}: pass a "
            "smaller --lr-low, or --clip 1"
        )
    return found


def next_round(losses: Mapping[float, float], config: Config, count: int) -> list[float]:
    """Exponents to try next: the parts on either side of the best one so far, up to its neighbours, cut evenly.

    Arguments:
        losses: of the exponents tried so far, infinite where training diverged.
        config: ``lr_low`` and ``lr_high`` bound the search; they are themselves not tried.
        count: how many.

    >>> next_round({}, Config(lr_low=1e-5, lr_high=1.0), 4)
    [-4.0, -3.0, -2.0, -1.0]
    >>> next_round({-4.0: 3.0, -3.0: 1.0, -2.0: 2.0, -1.0: math.inf}, Config(lr_low=1e-5, lr_high=1.0), 2)
    [-3.5, -2.5]
    """
    ends = [math.log10(config.lr_low), math.log10(config.lr_high)]
    if losses:
        best = min(losses, key=lambda place: (losses[place], place))
        below = max((place for place in losses if place < best), default=ends[0])
        above = min((place for place in losses if place > best), default=ends[1])
        # If all have diverged, the best is the smallest, and no larger one is worth a trial.
        ends = [below, best, above] if math.isfinite(losses[best]) else [below, best]
    parts = list(pairwise(ends))
    cuts = [0] * len(parts)
    for _ in range(count):
        # Rounded, so that of equal parts the lower comes first whatever their last digits.
        pieces = [round((b - a) / (n + 1), 9) for (a, b), n in zip(parts, cuts, strict=True)]
        cuts[pieces.index(max(pieces))] += 1
    return [a + (b - a) * i / (n + 1) for (a, b), n in zip(parts, cuts, strict=True) for i in range(1, n + 1)]


def _at_once(world: World) -> int:
    """Trials that are trained side by side: a CPU is busy with one, and several processes must take the same step."""
    return TOGETHER if world.device.type == "cuda" and world.size == 1 else 1


def _groups(rates: Mapping[int, float], size: int) -> list[dict[int, float]]:
    """Neighbouring trials, so many at a time."""
    items = list(rates.items())
    return [dict(items[start : start + size]) for start in range(0, len(items), size)]


def _train(
    net: nn.Module,
    data: Data,
    config: Config,
    world: World,
    rates: Mapping[int, float],
    over: Callable[[int, Trial], None],
    emit: Callback,
    stopping: Callable[[], bool],
    dock: Dock,
    shelf: Shelf,
) -> Pieces[None]:
    """Trials side by side, by number; ``over`` is called with each when it ends."""

    def stepped(number: int, trainer: Trainer) -> bool:
        steps = len(trainer.batches)
        done = trainer.step_count / (config.lr_epochs * steps)
        emit(Trying(number, config.lr_trials, trainer.lr, done, trainer.running_loss))
        if trainer.batch == steps:
            loss = trainer.sums["nll"] / trainer.sums["count"]
            trainer.next_epoch()
            if trainer.epoch == config.lr_epochs:
                over(number, Trial(rates[number], loss))
                return False
        shelf.stepped(number, trainer)
        return True

    def diverged(number: int, error: DivergedError) -> None:
        over(number, Trial(rates[number], math.inf))

    turns = {number: Turn(world.device) for number in rates}
    trainers = {}
    for number, lr in rates.items():
        with turns[number]:
            torch.manual_seed(config.seed)
            trainers[number] = make_trainer(copy.deepcopy(net), data, config.trial, lr, world, dock)
            _check_warmup(config, len(trainers[number].batches))
            _check_peak(config, len(trainers[number].batches))
            shelf.resume(number, trainers[number])
    yield from stepping(trainers, turns, stepped, diverged, stopping, shelf.keep)


def _check_warmup(config: Config, steps: int) -> None:
    """A trial has to get to the learning rate that it is about."""
    if config.warmup_steps >= config.lr_epochs * steps:
        raise ValueError(
            f"warmup_steps={config.warmup_steps}: a trial of the learning-rate search is over after "
            f"{config.lr_epochs * steps} steps; pass --lr-epochs {config.warmup_steps // steps + 1} or more, a shorter "
            "--warmup-steps, or --lr"
        )


def peak(config: Config, epochs: int, steps: int) -> float:
    """Highest learning rate of so many epochs in units of ``lr``: that at the end of an epoch, within which none falls.

    >>> peak(Config(), 1, steps=10), peak(Config(warmup_steps=20), 1, steps=10)
    (1.0, 0.5)
    """
    schedule = Schedule(config, 1.0, steps)
    return max(schedule.rate(epoch * steps - 1) for epoch in range(1, epochs + 1))


def _check_peak(config: Config, steps: int) -> None:
    """The warm-up of an annealed trial must not last until its learning rate has fallen."""
    if not config.lr_anneal:
        return
    trial, run = peak(config.trial, config.lr_epochs, steps), peak(config, config.epochs, steps)
    if trial < REACHED * run:
        raise ValueError(
            f"warmup_steps={config.warmup_steps}: an annealed trial of the learning-rate search ({config.lr_epochs} "
            f"epochs of {steps} steps) gets to {trial:.0%} of its learning rate, the run to {run:.0%}; pass "
            "--no-lr-anneal, more --lr-epochs, a shorter --warmup-steps, or --lr"
        )
