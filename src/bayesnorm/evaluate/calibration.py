"""Whether probabilities mean what they say: reliability, calibration error of equal-mass bins, temperature scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..moments.core import wide
from .metrics import BINS, IGNORE, Tally
from .scores import counted, max_probability

COLDEST, HOTTEST = 0.01, 100.0
"""Temperatures between which one is fitted. Where every target is the most probable class, the best would be 0."""


@dataclass(frozen=True)
class Reliability:
    """Bins of the largest probability, each ``(bins,)`` in float64 on the CPU.

    Arguments:
        count: targets in each bin.
        confidence: mean of their largest probabilities; NaN where the bin is empty.
        accuracy: fraction of them that are the most probable class; NaN where the bin is empty.
    """

    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def ece(self) -> float:
        """Expected calibration error ``sum_b n_b / n |accuracy_b - confidence_b|``."""
        weights, gaps = self.count / self.count.sum(), (self.accuracy - self.confidence).abs()
        return (weights * gaps)[self.count > 0].sum().item()


def reliability(log_probs: Tensor, targets: Tensor, bins: int = BINS, ignore_index: int = IGNORE) -> Reliability:
    """Confidence and accuracy in bins of equal width, ``(b / bins, (b + 1) / bins]``.

    Arguments:
        log_probs: normalized log-probabilities ``(N, classes, *space)``.
        targets: int64 classes ``(N, *space)``.
        bins: number of bins.
        ignore_index: targets that do not count.

    >>> reliability(torch.tensor([[0.7, 0.3], [0.1, 0.9]]).log(), torch.tensor([0, 0]), bins=2).accuracy
    tensor([   nan, 0.5000], dtype=torch.float64)
    """
    tally = Tally(bins, ignore_index, log_probs.device)
    tally.update(log_probs, targets)
    return reliability_of(tally)


def reliability_of(tally: Tally) -> Reliability:
    """What :func:`reliability` says of everything that a tally has seen; ValueError if that is nothing."""
    tally.compute()
    return _of_sums(*tally.sums[:-1].cpu().view(3, -1))


def adaptive_reliability(
    log_probs: Tensor, targets: Tensor, bins: int = BINS, ignore_index: int = IGNORE
) -> Reliability:
    """As :func:`reliability`, in bins of equal mass: a target is in bin ``floor(bins * r / n)``.

    r is the number of targets with a smaller largest probability, so that equals share a bin and the order of the
    targets does not matter. Without equals the sizes of the bins differ by at most 1.
    """
    if bins < 1:
        raise ValueError(f"bins={bins}: must be at least 1")
    rows, classes = counted(log_probs, targets, ignore_index)
    confidence = max_probability(rows).double()
    hits = rows.argmax(1) == classes
    # NaN has no rank; in the last bin it shows.
    index = (torch.searchsorted(confidence.sort().values, confidence) * bins // len(rows)).clamp(max=bins - 1)
    members = [index == b for b in range(bins)]
    return _of_sums(
        torch.stack([member.sum() for member in members]).double().cpu(),
        torch.stack([(member & hits).sum() for member in members]).double().cpu(),
        torch.stack([torch.where(member, confidence, 0.0).sum() for member in members]).cpu(),
    )


def _of_sums(count: Tensor, hits: Tensor, confidence: Tensor) -> Reliability:
    return Reliability(count, confidence / count, hits / count)


def adaptive_ece(log_probs: Tensor, targets: Tensor, bins: int = BINS, ignore_index: int = IGNORE) -> float:
    """Expected calibration error over bins of equal mass, see :func:`adaptive_reliability`.

    >>> round(adaptive_ece(torch.tensor([[0.7, 0.3], [0.1, 0.9]]).log(), torch.tensor([0, 0]), bins=2), 4)
    0.6
    """
    return adaptive_reliability(log_probs, targets, bins, ignore_index).ece


def calibrated(log_probs: Tensor, temperature: float) -> Tensor:
    """Log-probabilities ``log_softmax(log_probs / temperature)``, the classes on axis 1.

    The most probable class stays; above 1 the probabilities become more even.

    >>> calibrated(torch.tensor([[0.8, 0.2]]).log(), 2.0).exp()
    tensor([[0.6667, 0.3333]])
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature={temperature}: must be positive and finite")
    return (wide(log_probs) / temperature).log_softmax(1)


def calibrated_nll(log_probs: Tensor, targets: Tensor, temperature: float, ignore_index: int = IGNORE) -> float:
    """Mean of ``-log p(target)`` of the :func:`calibrated` log-probabilities, in nats.

    >>> log_probs, targets = torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log(), torch.tensor([0, 1])
    >>> round(calibrated_nll(log_probs, targets, 1.0), 4), round(calibrated_nll(log_probs, targets, 2.0), 4)
    (1.204, 0.837)
    """
    rows, classes = counted(log_probs, targets, ignore_index)
    return -calibrated(rows.double(), temperature).gather(1, classes.unsqueeze(1)).mean().item()


@torch.no_grad()
def fit_temperature(log_probs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> float:
    """Temperature T that minimizes the mean NLL of ``log_softmax(log_probs / T)``, to be fitted on validation data.

    The NLL is convex in 1/T; the root of its derivative is found by Newton steps inside a bracket, in float64. The
    result is within ``[0.01, 100]``, and 1 where no temperature makes a difference (one class, even predictions).

    Arguments:
        log_probs: normalized log-probabilities ``(N, classes, *space)``.
        targets: int64 classes ``(N, *space)``.
        ignore_index: targets that do not count.

    >>> log_probs = torch.tensor([[0.99, 0.01]] * 4).log()
    >>> temperature = fit_temperature(log_probs, torch.tensor([0, 0, 0, 1]))  # right in three of four
    >>> calibrated(log_probs, temperature)[0].exp()
    tensor([0.7500, 0.2500])
    """
    rows, classes = counted(log_probs, targets, ignore_index)
    rows = rows.double()
    picked = rows.gather(1, classes.unsqueeze(1))
    impossible = (picked == -math.inf).sum().item()
    if impossible or rows.isnan().any():
        what = f"{impossible} targets have probability 0" if impossible else "log_probs hold NaN"
        raise ValueError(f"{what}: no temperature fits; pass log_softmax of finite logits, not log of probabilities")
    return 1 / _root(rows, rows - picked)


def _root(rows: Tensor, gaps: Tensor) -> float:
    """Inverse temperature where the derivative of the NLL vanishes, or the bound beyond which it would."""
    low, high, beta = 1 / HOTTEST, 1 / COLDEST, 1.0
    slope, curvature = _derivatives(rows, gaps, beta)
    if abs(slope) <= 1e-14 and curvature <= 1e-14:
        return beta
    if _derivatives(rows, gaps, low)[0] >= 0:
        return low
    if _derivatives(rows, gaps, high)[0] <= 0:
        return high
    for _ in range(200):
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else math.inf
        following = step if low < step < high else math.sqrt(low * high)
        done = abs(following - beta) <= 1e-12 * beta
        beta = following
        if done:
            break
        slope, curvature = _derivatives(rows, gaps, beta)
    return beta


def _derivatives(rows: Tensor, gaps: Tensor, beta: float) -> tuple[float, float]:
    """First and second derivative of the mean NLL in the inverse temperature: mean and variance of the gaps.

    ``gaps`` are ``log p_c - log p(target)``: the term of the target is exactly 0, and where the target is the most
    probable class no rounding makes the derivative positive.
    """
    probs = (beta * rows).softmax(1)
    finite = gaps.where(probs > 0, 0.0)
    mean = (probs * finite).sum(1, keepdim=True)
    variance = (probs * (finite - mean).square()).sum(1)
    return mean.mean().item(), variance.mean().item()
