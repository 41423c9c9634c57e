"""A trained network on one split: single pass and Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .._posterior import posterior
from .._predict import predict
from ..data.base import Data
from ..data.passes import images_of
from .metrics import Metrics, Tally


def evaluate(
    net: nn.Module,
    data: Data,
    part: str = "test",
    samples: int = 30,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
) -> dict[str, Metrics]:
    """Metrics by the way of predicting: ``"single"`` with the mean scales, ``"mc10"``, ... with so many draws.

    Arguments:
        net: on the device of the data.
        data: whose split ``part`` is predicted.
        samples: most draws; of more than 10, 10 are reported too. A network that draws nothing has a single pass only.
        seed: of the augmentation of validation images.
        progress: called with the number of images after each piece.
    """
    draws = sorted({0, min(10, samples), samples}) if posterior(net) else [0]
    tallies = {count: Tally(device=data.device) for count in draws}
    done = 0
    for images, targets in images_of(data, part, seed):
        for count, tally in tallies.items():
            tally.update(predict(net, images, samples=count, first=done).log_probs, targets)
        done += len(images)
        progress(len(images))
    return {name_of(count): tally.compute() for count, tally in tallies.items()}


def name_of(samples: int) -> str:
    """Key of a number of draws.

    >>> name_of(0), name_of(30)
    ('single', 'mc30')
    """
    return f"mc{samples}" if samples else "single"


def as_json(metrics: dict[str, Metrics]) -> dict[str, Any]:
    """For a file; an infinite NLL is null."""
    return {
        name: {key: value if value < float("inf") else None for key, value in found._asdict().items()}
        for name, found in metrics.items()
    }
