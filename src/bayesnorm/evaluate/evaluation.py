"""A trained network on one split: single pass, by moments, and Monte Carlo."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._posterior import posterior
from .._predict import Prediction, predict
from ..data.base import Data
from ..data.passes import images_of, moves
from .panel import NAMES, OF_PIXELS, Judgement, Measures, Predicted, judge
from .selective import Curve

POINTS = 200
"""Most points of an error-coverage curve that are stored."""


def evaluate(
    net: nn.Module,
    data: Data,
    part: str = "test",
    samples: int = 30,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
    calibrate: bool = True,
) -> dict[str, Judgement]:
    """Judgements by the way of predicting: ``"single"`` with the mean scales, ``"moments"``, ``"mc10"``, ...

    Arguments:
        net: on the device of the data.
        data: whose split ``part`` is predicted.
        samples: most draws; of more than 10, 10 are reported too. A network that draws nothing has a single pass only.
        seed: of the augmentation of validation images.
        progress: called with the number of images after each piece, of every way and of both splits.
        calibrate: fit a temperature on the validation split, for the calibrated figures; not done where that is the
            one which is judged.
    """
    judges_val = part == "val" or (part == "test" and not data.has_test)

    def pieces(way: str, name: str) -> Iterator[Predicted]:
        done, known = 0, None if moves(data, name) else data.part(name).objects
        for images, targets in images_of(data, name, seed):
            found = predicted_by(way, net, images, done)
            objects = None if known is None else known[done : done + len(images)]
            yield found.log_probs, found.mutual_info if way != "single" else None, targets, objects
            done += len(images)
            progress(len(images))

    return {way: judge(partial(pieces, way), part, calibrate and not judges_val) for way in ways(net, data, samples)}


def ways(net: nn.Module, data: Data, samples: int) -> list[str]:
    """Ways of predicting that make sense for a network."""
    if samples == 0 or not posterior(net):
        return ["single"]
    draws = [name_of(count) for count in sorted({min(10, samples), samples})]
    return ["single", "moments", *draws]


def predicted_by(way: str, net: nn.Module, images: Tensor, first: int = 0) -> Prediction:
    """Prediction of images of which the first has number ``first``, in one of the :func:`ways`."""
    if way == "moments":
        return predict(net, images, method="moments")
    return predict(net, images, samples=draws_of(way), first=first)


def name_of(samples: int) -> str:
    """Key of a number of draws.

    >>> name_of(0), name_of(30)
    ('single', 'mc30')
    """
    return f"mc{samples}" if samples else "single"


def draws_of(way: str) -> int:
    """Draws of a way of predicting.

    >>> draws_of("single"), draws_of("mc30")
    (0, 30)
    """
    return int(way.removeprefix("mc")) if way.startswith("mc") else 0


def as_json(judgements: dict[str, Judgement]) -> dict[str, Any]:
    """For a file: ``metrics``, ``reliability`` and ``coverage`` by the way of predicting; what is infinite is null."""
    return {
        "metrics": {way: measures_as_json(found.measures) for way, found in judgements.items()},
        "reliability": {
            way: {key: _numbers(value) for key, value in vars(found.reliability).items()}
            for way, found in judgements.items()
        },
        "coverage": {
            way: {"entropy": curve_as_json(found.by_entropy), "max_prob": curve_as_json(found.by_max_prob)}
            for way, found in judgements.items()
        },
    }


def measures_as_json(measures: Measures) -> dict[str, float | None]:
    """For a file; what is infinite is null, and what is measured of pixels alone is left out elsewhere."""
    return {
        key: value if value is None or math.isfinite(value) else None
        for key, value in dataclasses.asdict(measures).items()
        if value is not None or key not in OF_PIXELS
    }


def measures_from_json(values: dict[str, Any]) -> Measures:
    """The measures that ``as_json`` wrote; an NLL of null is infinite, the calibrated one if there is a temperature."""
    known: dict[str, Any] = {name: values.get(name) if name in OF_PIXELS else values[name] for name in NAMES}
    for name in ("nll", "calibrated_nll") if known["temperature"] is not None else ("nll",):
        known[name] = math.inf if known[name] is None else known[name]
    return Measures(**known)


def curve_as_json(curve: Curve) -> dict[str, list[float | None]]:
    """Coverage and risk; of more than ``POINTS``, some evenly over the coverage, the first and the last among them."""
    coverage, risk = curve.coverage, curve.risk
    if len(coverage) > POINTS:
        wanted = torch.linspace(0, 1, POINTS, dtype=torch.float64)
        chosen = torch.searchsorted(coverage, wanted).clamp(max=len(coverage) - 1).unique()
        coverage, risk = coverage[chosen], risk[chosen]
    return {"coverage": _numbers(coverage), "risk": _numbers(risk)}


def _numbers(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
