"""Accuracy, negative log-likelihood and calibration error of log-probabilities, for a batch or as sums over many."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..moments.core import wide

BINS = 15
IGNORE = -100
NORMALIZED = 0.04
"""By how much the probabilities of a prediction may miss 1 in the mean: logits do by far more. bfloat16 rounds
``log p`` by up to 1/32 where it is above -16, so even predictions of many classes sum to 0.97 .. 1.03."""


class Metrics(NamedTuple):
    """Means over the targets that count.

    Arguments:
        count: how many targets those are (pixels, in segmentation).
        accuracy: fraction whose most probable class (the first of equals) is the target.
        nll: mean of ``-log p(target)``, in nats; infinite where a target has probability 0.
        ece: ``sum_b n_b / n |accuracy_b - confidence_b|`` over bins of equal width of the largest probability.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants here
    accuracy: float
    nll: float
    ece: float


class Tally:
    """Sums from which :class:`Metrics` follow, in float64, however many samples go in.

    ``update`` never waits for the device; only ``compute`` does. Sums of counts do not depend on the order of the
    samples, those of real numbers up to rounding.

    Arguments:
        bins: number of bins of the calibration error; bin b holds the confidences in ``(b / bins, (b + 1) / bins]``.
        ignore_index: targets that do not count.
        device: where the sums start; they follow the first batch.

    >>> tally = Tally()
    >>> tally.update(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
    >>> count, accuracy, nll, ece = tally.compute()
    >>> count, accuracy, round(nll, 4), round(ece, 4)
    (2, 0.5, 0.5697, 0.4)
    """

    def __init__(self, bins: int = BINS, ignore_index: int = IGNORE, device: torch.device | str | None = None) -> None:
        if bins < 1:
            raise ValueError(f"bins={bins}: must be at least 1")
        self.bins = bins
        self.ignore_index = ignore_index
        self._sums = torch.zeros(3 * bins + 2, dtype=torch.float64, device=device)

    @classmethod
    def from_sums(cls, sums: Tensor, ignore_index: int = IGNORE) -> Tally:
        """A tally that goes on from the ``sums`` of another, or from a total of several."""
        if sums.dim() != 1 or sums.numel() < 5 or sums.numel() % 3 != 2 or sums.dtype != torch.float64:
            raise ValueError(
                f"sums of shape {tuple(sums.shape)} and {sums.dtype}: pass Tally.sums, 3 * bins + 2 numbers in float64"
            )
        tally = cls(sums.numel() // 3, ignore_index, sums.device)
        tally._sums.copy_(sums)
        return tally

    @property
    def sums(self) -> Tensor:
        """For each bin the targets, then the hits, then the confidence; last the negative log-likelihood and the total
        probability.

        This is the state itself, ``(3 bins + 2,)``: an all-reduce of it in place is a tally over all ranks.
        """
        return self._sums

    @torch.no_grad()
    def update(self, log_probs: Tensor, targets: Tensor) -> None:
        """Add a batch.

        Arguments:
            log_probs: normalized log-probabilities ``(N, classes, *space)``.
            targets: int64 classes ``(N, *space)``.
        """
        _check(log_probs, targets)
        new = _sums(log_probs, targets, self.bins, self.ignore_index)
        if new.device != self._sums.device:
            self._sums = self._sums.to(new.device)
        self._sums += new

    def merge(self, other: Tally) -> None:
        """Add what another tally has seen."""
        if other.bins != self.bins:
            raise ValueError(f"bins={other.bins} cannot be merged into bins={self.bins}: make both with the same bins")
        self._sums += other._sums.to(self._sums.device)

    def compute(self) -> Metrics:
        """The metrics so far; ValueError if no target counted or one that counts is no class."""
        *binned, nll, mass = self._sums.tolist()
        counts, hits, confidence = (binned[i * self.bins : (i + 1) * self.bins] for i in range(3))
        count = round(sum(counts))
        if count == 0:
            raise ValueError(f"no targets: nothing was added, or all are ignore_index={self.ignore_index}; add a batch")
        check_mass(mass / count)
        if math.isnan(nll) and not math.isnan(sum(confidence)):
            raise ValueError(
                f"some targets are not a class: pass 0 to classes - 1, or ignore_index={self.ignore_index} to ignore"
            )
        gaps = sum(abs(hit - sure) for hit, sure in zip(hits, confidence, strict=True))
        return Metrics(count, sum(hits) / count, nll / count, gaps / count)


def check_mass(mass: float) -> None:
    """ValueError where the probabilities of a prediction sum, in the mean, to something else than 1."""
    if abs(mass - 1) > NORMALIZED:
        raise ValueError(
            f"the probabilities of a prediction sum to {mass:.3g} in the mean: pass log-probabilities, "
            "not logits or probabilities"
        )


def check_normalized(log_probs: Tensor, dim: int = 1) -> None:
    """ValueError for logits or probabilities; waits for the device."""
    if log_probs.numel():
        check_mass(wide(log_probs).exp().sum(dim).mean(dtype=torch.float64).item())


def _check(log_probs: Tensor, targets: Tensor) -> None:
    if log_probs.dim() < 2 or targets.shape != log_probs.shape[:1] + log_probs.shape[2:] or log_probs.size(1) == 0:
        raise ValueError(
            f"log_probs of shape {tuple(log_probs.shape)} and targets of shape {tuple(targets.shape)}: pass "
            "(N, classes, *space) and (N, *space)"
        )
    if not log_probs.is_floating_point() or targets.dtype != torch.int64:
        raise ValueError(
            f"log_probs of {log_probs.dtype} and targets of {targets.dtype}: pass floating point and torch.int64"
        )


def _sums(log_probs: Tensor, targets: Tensor, bins: int, ignore_index: int) -> Tensor:
    """The state of a tally that has seen one batch; masks instead of indexing, which would wait for the device."""
    counts = targets != ignore_index
    known = (targets >= 0) & (targets < log_probs.size(1))
    picked = log_probs.gather(1, targets.where(known, 0).unsqueeze(1)).squeeze(1).double()
    best, guess = log_probs.max(1)
    confidence = wide(best).exp()
    hits = guess == targets
    edges = torch.arange(1, bins, dtype=torch.float64, device=targets.device) / bins
    index = torch.bucketize(confidence, edges.to(confidence.dtype))
    # A comparison with each bin is deterministic on every device; sums by scattering are not on a GPU.
    members = (index == torch.arange(bins, device=index.device).view(-1, *[1] * index.dim())) & counts
    rows = [
        members.flatten(1).sum(1).double(),
        (members & hits).flatten(1).sum(1).double(),
        torch.where(members, confidence, 0.0).flatten(1).sum(1, dtype=torch.float64),
        # What is no class is NaN in the likelihood alone, by which compute knows it.
        torch.where(counts, -picked.where(known, math.nan), 0.0).sum().view(1),
        torch.where(counts, wide(log_probs).exp().sum(1), 0.0).sum(dtype=torch.float64).view(1),
    ]
    return torch.cat(rows)


def _metrics(log_probs: Tensor, targets: Tensor, bins: int, ignore_index: int) -> Metrics:
    tally = Tally(bins, ignore_index, log_probs.device)
    tally.update(log_probs, targets)
    return tally.compute()


def accuracy(log_probs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> float:
    """Fraction of targets that are the most probable class, the first of equals.

    Arguments:
        log_probs: normalized log-probabilities ``(N, classes, *space)``.
        targets: int64 classes ``(N, *space)``.
        ignore_index: targets that do not count.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.1, 0.9]]).log(), torch.tensor([0, 0, 0]))
    0.6666666666666666
    """
    return _metrics(log_probs, targets, 1, ignore_index).accuracy


def nll(log_probs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> float:
    """Mean of ``-log p(target)``, in nats; arguments as in :func:`accuracy`.

    >>> round(nll(torch.tensor([[0.7, 0.3], [0.5, 0.5]]).log(), torch.tensor([0, 0])), 4)
    0.5249
    """
    return _metrics(log_probs, targets, 1, ignore_index).nll


def ece(log_probs: Tensor, targets: Tensor, bins: int = BINS, ignore_index: int = IGNORE) -> float:
    """Expected calibration error ``sum_b n_b / n |accuracy_b - confidence_b|``; arguments as in :func:`accuracy`.

    Arguments:
        bins: bin b holds the targets whose largest probability is in ``(b / bins, (b + 1) / bins]``.

    >>> round(ece(torch.tensor([[0.7, 0.3], [0.1, 0.9]]).log(), torch.tensor([0, 0])), 4)
    0.6
    """
    return _metrics(log_probs, targets, bins, ignore_index).ece
