"""What happens during training, for callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

Record = dict[str, Any]
"""Measurements after one epoch, as a line of ``metrics.jsonl``."""


def measured(history: Sequence[Record]) -> list[Record]:
    """Records of the epochs after which the network was evaluated, see ``Config.eval_every``.

    >>> measured([{"epoch": 1}, {"epoch": 2, "val_nll": None}])
    [{'epoch': 2, 'val_nll': None}]
    """
    return [record for record in history if "val_nll" in record]


@dataclass(frozen=True)
class Trying:
    """A step of a trial was taken; ``done`` is the part of the trial that is over."""

    trial: int
    trials: int
    lr: float
    done: float
    loss: float


@dataclass(frozen=True)
class Tried:
    """One learning rate has been tried; ``loss`` is the training NLL of its last epoch."""

    trial: int
    trials: int
    lr: float
    loss: float


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on after ``step`` steps."""

    net: nn.Module
    lr: float
    step: int
    epoch: int
    epochs: int
    steps_per_epoch: int


@dataclass(frozen=True)
class Stepped:
    """A step was taken; ``loss`` is the running mean of the epoch."""

    step: int
    loss: float


@dataclass(frozen=True)
class EpochEnded:
    """An epoch was finished; its record has the validation where that was measured."""

    net: nn.Module
    record: Record


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    step: int
    path: Path


Event = Trying | Tried | Started | Stepped | EpochEnded | Saved


class Callback(Protocol):
    """Anything that can be called with an event. It must not change the network: that would change the run."""

    def __call__(self, event: Event, /) -> None:
        """Called by rank 0 when the event has happened."""
        ...
