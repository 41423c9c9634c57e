"""Predict only where it is sure: the error of what is accepted against the fraction that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from ..moments.core import wide
from .metrics import IGNORE, _check, check_normalized
from .scores import check_sums, counted, entropies, outside

FINEST = 1e-15
"""Scores are told apart by their difference below this one and by their ratio above it: most predictions of a trained
network are nearly sure, and bins of equal width would hold them all in the first."""
LARGEST = {"entropy": math.log(1 << 16), "max_prob": 1.0}


class By(StrEnum):
    """What decides whether a prediction is accepted; the smaller, the surer."""

    ENTROPY = "entropy"
    MAX_PROB = "max_prob"


@dataclass(frozen=True)
class Curve:
    """Error against coverage, one point per threshold; predictions with equal scores are accepted together.

    Arguments:
        threshold: predictions with a score up to it are accepted, ``(points,)`` in float64, ascending, on the CPU.
        accepted: how many those are, int64, strictly ascending; the last is the number of all.
        errors: how many of those are wrong, int64.
    """

    threshold: Tensor
    accepted: Tensor
    errors: Tensor

    @property
    def coverage(self) -> Tensor:
        """Fraction of the predictions that is accepted, in ``(0, 1]``; float64."""
        return self.accepted.double() / self.accepted[-1]

    @property
    def risk(self) -> Tensor:
        """Fraction of wrong ones among the accepted; float64."""
        return self.errors.double() / self.accepted

    @property
    def aurc(self) -> float:
        """Area under the curve: mean of the risk over the coverages ``k / N``, k = 1 .. N (Geifman & El-Yaniv).

        Of predictions with equal scores it takes the mean over all orders in which they could be accepted, which
        spreads the errors of such a group evenly over it.
        """
        return _area(self.accepted, self.errors)

    @property
    def excess_aurc(self) -> float:
        """AURC minus that of an order with all right predictions first: 0 is the best that a score can do.

        The optimum is that of exactly so many errors among N, not its limit ``r + (1 - r) log(1 - r)``.
        """
        count, wrong = self.accepted[-1], self.errors[-1]
        best = _area(torch.stack([count - wrong, count]), torch.stack([torch.zeros_like(wrong), wrong]))
        return max(0.0, self.aurc - best)

    def coverage_at(self, risk: float) -> float:
        """Largest coverage whose risk is at most ``risk``; 0 if there is none."""
        if not 0 <= risk <= 1:
            raise ValueError(f"risk={risk}: pass an error rate between 0 and 1")
        return self.coverage.where(self.risk <= risk, 0.0).max().item()


def uncertainty(log_probs: Tensor, by: By | str = By.ENTROPY) -> Tensor:
    """Score of each prediction ``(N, *space)``: its entropy in nats, or 1 minus its largest probability.

    >>> uncertainty(torch.tensor([[0.75, 0.25]]).log(), "max_prob")
    tensor([0.2500])
    """
    by = _by(by)
    check_normalized(log_probs)
    return scores_by(log_probs, by)


def scores_by(log_probs: Tensor, by: By) -> Tensor:
    """:func:`uncertainty` that does not look at the values, and so never waits for the device."""
    if by is By.ENTROPY:
        return entropies(log_probs)
    # A sum of the others: what is nearly sure has a largest probability of exactly 1 in float32, whatever is left.
    probs = wide(log_probs).exp()
    best, guess = probs.max(1, keepdim=True)
    others = probs.scatter(1, guess, 0.0).sum(1)
    return others + 0 * best.squeeze(1)  # NaN stays NaN


def error_coverage(log_probs: Tensor, targets: Tensor, by: By | str = By.ENTROPY, ignore_index: int = IGNORE) -> Curve:
    """Error-coverage curve with a point for every score that occurs (Fig. A3 of the paper: by entropy).

    Arguments:
        log_probs: normalized log-probabilities ``(N, classes, *space)``.
        targets: int64 classes ``(N, *space)``.
        by: ``"entropy"`` of the prediction, or ``"max_prob"``: 1 minus its largest probability.
        ignore_index: targets that do not count.

    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.6, 0.4]])
    >>> curve = error_coverage(probs.log(), torch.tensor([0, 0, 0, 1]))
    >>> curve.coverage.tolist(), curve.risk.tolist()
    ([0.25, 0.5, 1.0], [0.0, 0.0, 0.25])
    >>> curve.coverage_at(0.1)
    0.5
    """
    rows, classes = counted(log_probs, targets, ignore_index)
    scores, order = uncertainty(rows, by).double().sort()
    _refuse_nan(scores.isnan().sum().item())
    wrong = (rows.argmax(1) != classes)[order]
    last = torch.cat([scores[1:] != scores[:-1], wrong.new_ones(1)])
    accepted = torch.arange(1, len(scores) + 1, device=scores.device)
    return Curve(*[values[last].cpu() for values in (scores, accepted, wrong.cumsum(0))])


def aurc(log_probs: Tensor, targets: Tensor, by: By | str = By.ENTROPY, ignore_index: int = IGNORE) -> float:
    """Area under the :func:`error_coverage` curve, see :attr:`Curve.aurc`."""
    return error_coverage(log_probs, targets, by, ignore_index).aurc


def excess_aurc(log_probs: Tensor, targets: Tensor, by: By | str = By.ENTROPY, ignore_index: int = IGNORE) -> float:
    """AURC minus the least that so many errors allow, see :attr:`Curve.excess_aurc`."""
    return error_coverage(log_probs, targets, by, ignore_index).excess_aurc


class SelectiveTally:
    """Counts from which an error-coverage curve follows, in fixed memory; ``update`` never waits for the device.

    Every point of its curve is a point of the exact one; those between are missing. Bin edges are at
    ``finest ((1 + largest / finest)^(b / bins) - 1)``: at 4096 bins, scores that differ by 1 % are told apart.

    Arguments:
        by: ``"entropy"`` or ``"max_prob"``, as in :func:`error_coverage`.
        bins: number of bins of the score; 16 bytes each.
        ignore_index: targets that do not count.
        device: where the counts start; they follow the first batch.

    >>> tally = SelectiveTally()
    >>> tally.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
    >>> tally.curve().risk.tolist()
    [0.0, 0.5]
    """

    def __init__(
        self,
        by: By | str = By.ENTROPY,
        bins: int = 4096,
        ignore_index: int = IGNORE,
        device: torch.device | str | None = None,
    ) -> None:
        if bins < 1:
            raise ValueError(f"bins={bins}: must be at least 1")
        self.by = _by(by)
        self.bins = bins
        self.ignore_index = ignore_index
        largest = LARGEST[self.by]
        parts = torch.arange(1, bins + 1, dtype=torch.float64) / bins
        self._edges = (FINEST * torch.expm1(parts * math.log1p(largest / FINEST))).to(device)
        self._sums = torch.zeros(2 * bins + 3, dtype=torch.float64, device=device)

    @property
    def sums(self) -> Tensor:
        """Right and wrong predictions of each bin in turn; how many scores are NaN, total probability, how many targets
        are no class.

        This is the state itself, ``(2 bins + 3,)``: an all-reduce of it in place is a tally over all ranks.
        """
        return self._sums

    @torch.no_grad()
    def update(self, log_probs: Tensor, targets: Tensor) -> None:
        """Add a batch: log-probabilities ``(N, classes, *space)``, int64 targets ``(N, *space)``."""
        _check(log_probs, targets)
        if targets.device != self._sums.device:
            self._sums, self._edges = self._sums.to(targets.device), self._edges.to(targets.device)
        counts = targets != self.ignore_index
        scores = scores_by(log_probs, self.by).double()
        bins = torch.bucketize(scores, self._edges[:-1], out_int32=True)
        cells = 2 * bins + (log_probs.argmax(1) != targets)
        new = [
            _histogram(cells.where(counts, 2 * self.bins), 2 * self.bins),
            (scores.isnan() & counts).sum(),
            torch.where(counts, wide(log_probs).exp().sum(1), 0.0).sum(dtype=torch.float64),
            outside(log_probs, targets, self.ignore_index),
        ]
        self._sums += torch.cat([part.double().view(-1) for part in new])

    def merge(self, other: SelectiveTally) -> None:
        """Add what another tally has seen."""
        if (other.by, other.bins) != (self.by, self.bins):
            raise ValueError(
                f"by={other.by}, bins={other.bins} cannot be merged into by={self.by}, bins={self.bins}: "
                "make both with the same"
            )
        self._sums += other._sums.to(self._sums.device)

    def filled(self) -> tuple[Tensor, Tensor, Tensor]:
        """Bins that hold something, by ascending score, on the CPU; ValueError if no target counted.

        Returns:
            Lower edge (exclusive, but for 0) and upper edge (inclusive) of the scores, float64 ``(filled,)``, and the
            numbers of right and wrong predictions, int64 ``(filled, 2)``.
        """
        sums, upper = self._sums.cpu(), self._edges.cpu()
        invalid, mass, strange = sums[-3:].tolist()
        _refuse_nan(invalid)
        cells = sums[:-3].round().long().view(-1, 2)
        check_sums(cells.sum().item(), mass, strange, self.ignore_index)
        lower = torch.cat([upper.new_zeros(1), upper[:-1]])
        filled = cells.sum(1) > 0
        return lower[filled], upper[filled], cells[filled]

    def curve(self) -> Curve:
        """The curve so far, with a point for every bin that holds something; ValueError if no target counted."""
        _, upper, cells = self.filled()
        return Curve(upper, cells.sum(1).cumsum(0), cells[:, 1].cumsum(0))


def _by(by: By | str) -> By:
    if by not in tuple(By):
        raise ValueError(f"by={by!r}: choose {' or '.join(repr(way.value) for way in By)}")
    return By(by)


def _refuse_nan(count: float) -> None:
    if count:
        raise ValueError(
            f"{count:.0f} predictions are NaN and cannot be ordered: look for the input or layer they come from"
        )


def _histogram(cells: Tensor, count: int) -> Tensor:
    """How often 0 .. count - 1 occur. Sorting is deterministic on every device, counting by scattering is not."""
    limits = torch.arange(count + 1, dtype=cells.dtype, device=cells.device)
    return torch.searchsorted(cells.flatten().sort().values, limits).diff()


def _area(accepted: Tensor, errors: Tensor) -> float:
    """Mean over k = 1 .. N of the errors among the first k, divided by k; errors grow evenly between the points.

    Between a and b accepted, with e errors at a and rate r: ``sum_k (e + (k - a) r) / k = (b - a) r + (e - a r)
    (H_b - H_a)`` with the harmonic numbers H.
    """
    before = torch.cat([accepted.new_zeros(1), accepted[:-1]]).double()
    wrong = torch.cat([errors.new_zeros(1), errors[:-1]]).double()
    size, new = accepted - before, errors - wrong
    harmonic = torch.digamma(accepted.double() + 1) - torch.digamma(before + 1)
    rate = new / size.clamp(min=1)
    return ((new + (wrong - before * rate) * harmonic).sum() / accepted[-1]).item()
