"""All that is said about one way of predicting a split: the metrics together, in fixed memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .calibration import (
    COLDEST,
    ImpossibleError,
    Reliability,
    adaptive_reliability_of,
    calibrated,
    fit_temperature,
    reliability_of,
)
from .independence import IndependenceTally
from .metrics import IGNORE, Tally, _check
from .scores import ScoreTally
from .segmentation import ObjectTally, OverlapTally
from .selective import By, Curve, SelectiveTally

RISK = 0.01
"""Error rate at which the coverage is reported."""
FITTED = 1 << 21
"""Most targets to which a temperature is fitted; of more, every second, fourth, ... is taken."""

Predicted = tuple[Tensor, Tensor | None, Tensor] | tuple[Tensor, Tensor | None, Tensor, Tensor | None]
"""A piece of a split: log-probabilities ``(N, classes, *space)``, mutual information ``(N, *space)`` if there are
draws, targets ``(N, *space)``; and the numbers of the objects ``(N, H, W)``, where they are known."""


@dataclass(frozen=True)
class Measures:
    """Means over the targets that count; a temperature-scaled figure stands beside the raw one.

    Arguments:
        count: how many targets those are (pixels, in segmentation).
        accuracy: fraction of right ones.
        nll: negative log-likelihood, in nats; infinite where a target has probability 0.
        ece: calibration error over bins of equal width.
        adaptive_ece: the same over bins of equal mass.
        brier: Brier score, summed over classes.
        entropy: of the predictions, in nats.
        mutual_info: between prediction and scales, in nats; None for a single pass.
        aurc: area under the error-coverage curve by entropy.
        excess_aurc: that minus what a perfect order would have.
        aurc_max_prob: the area by the largest probability.
        coverage_at_1: largest coverage, by entropy, at which at most one in a hundred is wrong.
        temperature: fitted on validation data; None on validation data itself, or if none can be fitted.
        calibrated_nll: NLL at that temperature.
        calibrated_ece: calibration error at that temperature.
        iou: intersection over union of the foreground; None where a whole image has one class.
        dice: Dice coefficient of the foreground, likewise.
        seg: the Cell Tracking Challenge's SEG, where the objects are known.
        design_effect: how many pixels of an image count as one, by what is left of their targets; likewise.
    """

    count: int
    accuracy: float
    nll: float
    ece: float
    adaptive_ece: float
    brier: float
    entropy: float
    mutual_info: float | None
    aurc: float
    excess_aurc: float
    aurc_max_prob: float
    coverage_at_1: float
    temperature: float | None = None
    calibrated_nll: float | None = None
    calibrated_ece: float | None = None
    iou: float | None = None
    dice: float | None = None
    seg: float | None = None
    design_effect: float | None = None


NAMES = tuple(field.name for field in dataclasses.fields(Measures))
OF_PIXELS = ("iou", "dice", "seg", "design_effect")
"""Measures of a segmentation alone."""


@dataclass(frozen=True)
class Judgement:
    """Measures of one way of predicting, and the curves behind them."""

    measures: Measures
    reliability: Reliability
    by_entropy: Curve
    by_max_prob: Curve


class Panel:
    """Everything in :class:`Judgement`, added up piece by piece.

    Arguments:
        temperature: at which the calibrated figures are taken; None leaves them out.
        ignore_index: targets that do not count.
    """

    def __init__(self, temperature: float | None = None, ignore_index: int = IGNORE) -> None:
        self.temperature = temperature
        self.ignore_index = ignore_index
        self._plain, self._scaled = Tally(ignore_index=ignore_index), Tally(ignore_index=ignore_index)
        self._scores = ScoreTally(ignore_index)
        self._selective = {by: SelectiveTally(by, ignore_index=ignore_index) for by in By}
        self._mutual: Tensor | None = None
        self._overlap: OverlapTally | None = None
        self._objects: ObjectTally | None = None
        self._independence: IndependenceTally | None = None

    def update(
        self, log_probs: Tensor, mutual_info: Tensor | None, targets: Tensor, objects: Tensor | None = None
    ) -> None:
        """Add a piece, as in :data:`Predicted`."""
        self._plain.update(log_probs, targets)
        self._scores.update(log_probs, targets)
        for tally in self._selective.values():
            tally.update(log_probs, targets)
        if self.temperature is not None:
            self._scaled.update(calibrated(log_probs, self.temperature), targets)
        if mutual_info is not None:
            kept = torch.where(targets != self.ignore_index, mutual_info, 0.0).sum(dtype=torch.float64)
            self._mutual = kept if self._mutual is None else self._mutual + kept
        if log_probs.dim() > 2:
            self._segment(log_probs, targets, objects)

    def _segment(self, log_probs: Tensor, targets: Tensor, objects: Tensor | None) -> None:
        """What is measured of pixels."""
        predicted = log_probs.argmax(1)
        if self._overlap is None:
            self._overlap = OverlapTally(log_probs.size(1), self.ignore_index)
        self._overlap.update(predicted, targets)
        self._independence = self._independence or IndependenceTally(self.ignore_index)
        self._independence.update(log_probs, targets)
        if objects is not None:
            self._objects = self._objects or ObjectTally()
            self._objects.update(predicted, objects)

    def judge(self) -> Judgement:
        """All figures so far; ValueError if no target counted."""
        plain, scores = self._plain.compute(), self._scores.compute()
        entropy, largest = (self._selective[by].curve() for by in By)
        scaled = self._scaled.compute() if self.temperature is not None else None
        overlap = None if self._overlap is None else self._overlap.compute()
        measures = Measures(
            count=plain.count,
            accuracy=plain.accuracy,
            nll=plain.nll,
            ece=plain.ece,
            adaptive_ece=adaptive_reliability_of(self._selective[By.MAX_PROB]).ece,
            brier=scores.brier,
            entropy=scores.entropy,
            mutual_info=None if self._mutual is None else self._mutual.item() / plain.count,
            aurc=entropy.aurc,
            excess_aurc=entropy.excess_aurc,
            aurc_max_prob=largest.aurc,
            coverage_at_1=entropy.coverage_at(RISK),
            temperature=self.temperature,
            calibrated_nll=scaled and scaled.nll,
            calibrated_ece=scaled and scaled.ece,
            iou=overlap and overlap.iou,
            dice=overlap and overlap.dice,
            seg=None if self._objects is None else self._objects.compute(),
            design_effect=None if self._independence is None else self._independence.compute(),
        )
        return Judgement(measures, reliability_of(self._plain), entropy, largest)


def judge(predicted: Callable[[str], Iterable[Predicted]], part: str = "test", calibrate: bool = True) -> Judgement:
    """Judge a way of predicting on a split, with the temperature that it needs on the validation split.

    Arguments:
        predicted: gives the pieces of the split of a name.
        part: the split that is judged.
        calibrate: fit a temperature; not done where the validation split itself is judged.
    """
    panel = Panel(_temperature(predicted("val")) if calibrate and part != "val" else None)
    for piece in predicted(part):
        panel.update(*piece)
    return panel.judge()


def _temperature(pieces: Iterable[Predicted]) -> float | None:
    """None where none is best: no target counts, one has probability 0, or all predictions are right, and the colder
    the better. Predictions worse than even ones have the hottest, at which they are all but even."""
    thinned = _thinned(pieces)
    if thinned is None:
        return None
    try:
        found = fit_temperature(*thinned)
    except ImpossibleError:
        return None
    return found if found > COLDEST * 1.001 else None


def _thinned(pieces: Iterable[Predicted]) -> tuple[Tensor, Tensor] | None:
    """Evenly spaced ones of the predictions ``(M, classes)`` that count, at most ``FITTED``, and their targets; None if
    there are none."""
    rows: list[Tensor] = []
    classes: list[Tensor] = []
    apart, seen = 1, 0
    for log_probs, _, targets, *_objects in pieces:
        _check(log_probs, targets)
        kept = (targets != IGNORE).flatten().nonzero().squeeze(1)
        chosen = kept[-seen % apart :: apart]
        rows.append(log_probs.movedim(1, -1).flatten(0, -2)[chosen])
        classes.append(targets.flatten()[chosen])
        seen += len(kept)
        while sum(map(len, rows)) > FITTED:
            rows, classes, apart = [torch.cat(rows)[::2]], [torch.cat(classes)[::2]], 2 * apart
    return (torch.cat(rows), torch.cat(classes)) if seen else None
