"""Whether probabilities mean what they say: reliability, calibration error of equal-mass bins, temperature scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..moments.core import wide
from .metrics import BINS, IGNORE, Tally
from .scores import counted, max_probability
from .selective import By, SelectiveTally, uncertainty

COLDEST, HOTTEST = 0.01, 100.0
"""Temperatures between which one is fitted. Where every target is the most probable class, the best would be 0."""

COLUMNS = 1 << 14
"""Predictions of which derivatives are taken at a time, so that they stay in the cache."""


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
    return _of_sums(*tally.sums[:-2].cpu().view(3, -1))


def adaptive_reliability(
    log_probs: Tensor, targets: Tensor, bins: int = BINS, ignore_index: int = IGNORE
) -> Reliability:
    """As :func:`reliability`, in bins of equal mass: a target is in bin ``floor(bins * r / n)``.

    r is the number of targets of less sure predictions, so that equals share a bin and the order of the targets does
    not matter. Without equals the sizes of the bins differ by at most 1. Sure is by :func:`uncertainty`, which tells
    apart what a largest probability rounded to 1 does not.
    """
    _check(bins)
    rows, classes = counted(log_probs, targets, ignore_index)
    scores, confidence = uncertainty(rows, By.MAX_PROB), max_probability(rows).double()
    hits = rows.argmax(1) == classes
    surer = torch.searchsorted(scores.sort().values, scores, right=True)
    index = _adaptive_bin(len(rows) - surer, len(rows), bins)
    members = [index == b for b in range(bins)]
    return _of_sums(
        torch.stack([member.sum() for member in members]).double().cpu(),
        torch.stack([(member & hits).sum() for member in members]).double().cpu(),
        torch.stack([torch.where(member, confidence, 0.0).sum() for member in members]).cpu(),
    )


def adaptive_reliability_of(tally: SelectiveTally, bins: int = BINS) -> Reliability:
    """What :func:`adaptive_reliability` says of everything that a ``SelectiveTally(by="max_prob")`` has seen.

    The predictions in one of the tally's bins count as equals, with the middle of that bin as their score. The error
    differs from the exact one by at most ``1/n sum_f (m_f w_f / 2 + 2 k_f)`` over the tally's bins f of m predictions,
    of width w, with the last k beyond a boundary of equal mass: a confidence adds what it changes by, and a prediction
    that is moved at most 1 to the gap of the bin that it comes to and 1 to that of the bin that it leaves. At 4096 bins
    the first part is at most 0.5 % of the mean of ``1 - p``.

    Arguments:
        tally: that has counted by ``"max_prob"``; ValueError if that is nothing.
        bins: number of bins of equal mass.

    >>> tally = SelectiveTally("max_prob")
    >>> tally.update(torch.tensor([[0.7, 0.3], [0.1, 0.9]]).log(), torch.tensor([0, 0]))
    >>> round(adaptive_reliability_of(tally, bins=2).ece, 2)
    0.6
    """
    if tally.by is not By.MAX_PROB:
        raise ValueError(
            f"by={tally.by.value!r}: calibration is of the largest probability; pass a tally by 'max_prob'"
        )
    _check(bins)
    lower, upper, cells = tally.filled()
    sizes = cells.sum(1)
    index = _adaptive_bin(sizes.sum() - sizes.cumsum(0), int(sizes.sum()), bins)
    confidence = sizes * (1 - (lower + upper) / 2)
    members = (index == torch.arange(bins).view(-1, 1)).double()
    return _of_sums(members @ sizes.double(), members @ cells[:, 0].double(), members @ confidence)


def _adaptive_bin(less_sure: Tensor, count: int, bins: int) -> Tensor:
    """Number of the bin of equal mass, from the number of predictions that are less sure."""
    return less_sure * bins // count


def _check(bins: int) -> None:
    if bins < 1:
        raise ValueError(f"bins={bins}: must be at least 1")


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


class ImpossibleError(ValueError):
    """Targets have probability 0, which no temperature changes."""


@torch.no_grad()
def fit_temperature(log_probs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> float:
    """Temperature T that minimizes the mean NLL of ``log_softmax(log_probs / T)``, to be fitted on validation data.

    The NLL is convex in 1/T; the root of its derivative is found by Newton steps inside a bracket, in float64. The
    result is within ``[0.01, 100]``, and 1 where no temperature makes a difference (one class, even predictions). All
    predictions are held in float64 once more; of very many pixels a part is enough.

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
    impossible, strange = int((picked == -math.inf).sum()), int(rows.isnan().any(1).sum())
    if strange:
        raise ValueError(
            f"{strange} predictions are NaN: no temperature fits; look for the input or layer they come from"
        )
    if impossible:
        raise ImpossibleError(
            f"{impossible} targets have probability 0: no temperature fits; pass log_softmax of finite logits, not log "
            "of probabilities"
        )
    # Classes first: a softmax over a short last axis is many times slower. The bound keeps 0 * inf out.
    return 1 / _root((rows - picked).T.contiguous().clamp_(min=-1e100))


def _root(gaps: Tensor) -> float:
    """Inverse temperature where the derivative of the NLL vanishes, or the bound beyond which it would."""
    low, high, beta = 1 / HOTTEST, 1 / COLDEST, 1.0
    slope, curvature = _derivatives(gaps, beta)
    if abs(slope) <= 1e-14 and curvature <= 1e-14:
        return beta
    if _derivatives(gaps, low)[0] >= 0:
        return low
    if _derivatives(gaps, high)[0] <= 0:
        return high
    for _ in range(200):
        step = beta - slope / curvature if curvature > 0 else math.inf
        # Before the bracket is asked: of the last steps, rounding may make the sign wrong.
        if abs(step - beta) <= 1e-10 * beta:
            return step
        low, high = (beta, high) if slope < 0 else (low, beta)
        beta = step if low < step < high else math.sqrt(low * high)
        slope, curvature = _derivatives(gaps, beta)
    return beta


def _derivatives(gaps: Tensor, beta: float) -> tuple[float, float]:
    """First and second derivative of the mean NLL in the inverse temperature: mean and variance of the gaps.

    ``gaps`` are ``log p_c - log p(target)``, ``(classes, M)``: the term of the target is exactly 0, and where the
    target is the most probable class no rounding makes the derivative positive.
    """
    sums = gaps.new_zeros(2)
    for part in gaps.split(COLUMNS, 1):
        probs = (beta * part).softmax(0)
        mean = (probs * part).sum(0)
        variance = (probs * (part - mean).square_()).sum(0)
        sums += torch.stack([mean.sum(), variance.sum()])
    slope, curvature = (sums / gaps.size(1)).tolist()
    return slope, curvature
