"""Telling inputs of another kind by their uncertainty: how far the scores of two sets lie apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._predict import Prediction
from ..data.base import Data
from ..data.foreign import in_units_of, range_of
from ..data.passes import images_of
from ._averaging import pieces
from .evaluation import predicted_by, ways
from .selective import By, uncertainty

TPR = 0.95


class Separation(NamedTuple):
    """How well a score tells inputs from outside the distribution from those inside.

    Arguments:
        auroc: probability that an outer score exceeds an inner one, ties counting half; 0.5 for a score of no use.
        aupr_in: average precision of finding the inner ones by low scores; a useless score has their share of all.
        aupr_out: average precision of finding the outer ones by high scores.
        fpr95: share of the outer ones accepted at the lowest threshold that accepts 95 % of the inner ones.
    """

    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float


def separation(inside: Tensor, outside: Tensor) -> Separation:
    """Compare scores of uncertainty, which are expected to be larger outside, by scikit-learn.

    Arguments:
        inside: scores of inputs of the kind that was trained on, any shape.
        outside: scores of other inputs, any shape and number.

    >>> separation(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.5]))
    Separation(auroc=0.8333333333333334, aupr_in=0.9166666666666665, aupr_out=0.8333333333333333, fpr95=0.5)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    parts = _checked("inside", inside), _checked("outside", outside)
    scores = torch.cat(parts).numpy()
    is_outside = torch.cat([torch.zeros(len(parts[0])), torch.ones(len(parts[1]))]).numpy()
    false_rate, true_rate, _ = roc_curve(1 - is_outside, -scores, drop_intermediate=False)
    return Separation(
        auroc=float(roc_auc_score(is_outside, scores)),
        aupr_in=float(average_precision_score(1 - is_outside, -scores)),
        aupr_out=float(average_precision_score(is_outside, scores)),
        fpr95=float(false_rate[true_rate >= TPR][0]),
    )


def _checked(name: str, scores: Tensor) -> Tensor:
    """Flat, in float64 on the CPU."""
    flat = scores.detach().double().flatten().cpu()
    if len(flat) == 0:
        raise ValueError(f"{name}: there are no scores: pass at least one")
    bad = len(flat) - int(flat.isfinite().sum())
    if bad:
        raise ValueError(
            f"{name}: {bad} of {len(flat)} scores are NaN or infinite: look for inputs that are not finite"
        )
    return flat


def scores_of(prediction: Prediction) -> dict[str, Tensor]:
    """Scores of uncertainty ``(N, *space)`` of a prediction, larger where it is less certain.

    ``"entropy"``, ``"mutual_info"`` (0 for a single pass) and ``"max_prob"``: 1 minus the largest probability.
    """
    return {
        "entropy": prediction.entropy,
        "mutual_info": prediction.mutual_info,
        "max_prob": uncertainty(prediction.log_probs, By.MAX_PROB),
    }


def separations(inside: Prediction, outside: Prediction) -> dict[str, Separation]:
    """:func:`separation` of two sets of inputs by each score of :func:`scores_of`.

    Arguments:
        inside: prediction of inputs of the kind that was trained on.
        outside: prediction of other inputs by the same network, in the same way.
    """
    other = scores_of(outside)
    return {name: separation(scores, other[name]) for name, scores in scores_of(inside).items()}


def between(net: nn.Module, inside: Data, outside: Data | Tensor, samples: int = 30) -> dict[str, Separation]:
    """How well the uncertainty of a network tells another data set from the test images of its own, by each score.

    That of its last way of predicting: of all draws, or of a single pass, which has no mutual information.

    Arguments:
        net: on the device of its data.
        inside: what it was trained on.
        outside: another data set, whose test images are taken, its black and white as those of ``inside``; or images
            ``(N, C, H, W)`` in the units of ``inside``.
        samples: draws of the scales, if the network has any; 0 for a single pass.
    """
    if isinstance(outside, Data):
        outside = in_units_of(inside, outside.test.images, *range_of(outside))
    images = outside
    if images.dim() != 4 or images.size(1) != inside.image_size[0]:
        raise ValueError(
            f"outside: images of shape {tuple(images.shape)}, but the network takes {inside.image_size[0]} channels"
        )
    if len(images) == 0:
        raise ValueError("outside: there is no image: pass at least one")
    way = ways(net, inside, samples)[-1]
    own = _scores(net, way, (x for x, _ in images_of(inside, "test")))
    other = _scores(net, way, (inside.standardized(x) for x in pieces(images.to(inside.device), None)))
    told = {name: scores for name, scores in own.items() if way != "single" or name != "mutual_info"}
    return {name: separation(scores, other[name]) for name, scores in told.items()}


def _scores(net: nn.Module, way: str, inputs: Iterator[Tensor]) -> dict[str, Tensor]:
    """Scores of all inputs, one after the other; those of pixels are averaged over each image."""
    found: dict[str, list[Tensor]] = {}
    done = 0
    for x in inputs:
        for name, scores in scores_of(predicted_by(way, net, x, done)).items():
            found.setdefault(name, []).append(scores.flatten(1).mean(1) if scores.dim() > 1 else scores)
        done += len(x)
    return {name: torch.cat(parts) for name, parts in found.items()}
