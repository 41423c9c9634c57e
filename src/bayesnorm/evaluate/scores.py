"""Scores of each prediction (entropy, largest probability, mutual information) and the Brier score against targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..moments.core import wide
from .metrics import IGNORE, _check, check_mass, check_normalized


class Scores(NamedTuple):
    """Means over the targets that count.

    Arguments:
        count: how many targets those are (pixels, in segmentation).
        brier: mean of ``sum_c (p_c - [c = target])^2``, between 0 and 2.
        entropy: mean entropy of the predictions, in nats.
    """

    count: int  # type: ignore[assignment]  # hides tuple.count, as in Metrics
    brier: float
    entropy: float


class ScoreTally:
    """Sums from which :class:`Scores` follow, in float64; ``update`` never waits for the device.

    Arguments:
        ignore_index: targets that do not count.
        device: where the sums start; they follow the first batch.

    >>> tally = ScoreTally()
    >>> tally.update(torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log(), torch.tensor([0, 1]))
    >>> count, brier, entropy = tally.compute()
    >>> count, round(brier, 4), round(entropy, 4)
    (2, 0.29, 0.5968)
    """

    def __init__(self, ignore_index: int = IGNORE, device: torch.device | str | None = None) -> None:
        self.ignore_index = ignore_index
        self._sums = torch.zeros(5, dtype=torch.float64, device=device)

    @property
    def sums(self) -> Tensor:
        """Targets, their Brier score, entropy and total probability, and how many of them are no class.

        This is the state itself, ``(5,)``: an all-reduce of it in place is a tally over all ranks.
        """
        return self._sums

    @torch.no_grad()
    def update(self, log_probs: Tensor, targets: Tensor) -> None:
        """Add a batch: log-probabilities ``(N, classes, *space)``, int64 targets ``(N, *space)``."""
        _check(log_probs, targets)
        counts = targets != self.ignore_index
        probs = wide(log_probs).exp()
        classes = torch.arange(log_probs.size(1), device=targets.device).view(1, -1, *[1] * (targets.dim() - 1))
        one_hot = classes == targets.unsqueeze(1)
        rows = [
            counts.sum(),
            _total((probs - one_hot.to(probs.dtype)).square().sum(1), counts),
            _total(entropies(log_probs), counts),
            _total(probs.sum(1), counts),
            outside(log_probs, targets, self.ignore_index),
        ]
        new = torch.stack([row.double() for row in rows])
        if new.device != self._sums.device:
            self._sums = self._sums.to(new.device)
        self._sums += new

    def merge(self, other: ScoreTally) -> None:
        """Add what another tally has seen."""
        self._sums += other._sums.to(self._sums.device)

    def compute(self) -> Scores:
        """The scores so far; ValueError if no target counted."""
        count, brier, entropy, mass, strange = self._sums.tolist()
        check_sums(count, mass, strange, self.ignore_index)
        return Scores(round(count), brier / count, entropy / count)


def entropy(log_probs: Tensor, dim: int = 1) -> Tensor:
    """Entropy ``-sum_c p_c log p_c`` of each prediction, in nats, without the axis of the classes.

    Arguments:
        log_probs: normalized log-probabilities ``(N, classes, *space)``.
        dim: axis of the classes.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log())
    tensor([0.6931, 0.0000])
    """
    check_normalized(log_probs, dim)
    return entropies(log_probs, dim)


def entropies(log_probs: Tensor, dim: int = 1) -> Tensor:
    """:func:`entropy` that does not look at the values, and so never waits for the device."""
    found: Tensor = torch.special.entr(wide(log_probs).exp()).sum(dim)
    return found.clamp(min=0)


def max_probability(log_probs: Tensor) -> Tensor:
    """Largest probability of each prediction ``(N, *space)``, from log-probabilities ``(N, classes, *space)``.

    >>> max_probability(torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log())
    tensor([0.5000, 0.7500])
    """
    check_normalized(log_probs)
    return wide(log_probs).amax(1).exp()


def mutual_information(draws: Tensor) -> Tensor:
    """Entropy of the mean prediction minus the mean entropy of the draws, in nats: what the draws disagree about.

    Between 0 and ``log(min(K, classes))``; 0 for a single draw.

    Arguments:
        draws: log-probabilities ``(K, N, classes, *space)`` of K draws of the network.

    >>> mutual_information(torch.tensor([[[1.0, 0.0], [0.7, 0.3]], [[0.0, 1.0], [0.7, 0.3]]]).log())
    tensor([0.6931, 0.0000])
    """
    if draws.dim() < 3 or len(draws) == 0 or not draws.is_floating_point():
        raise ValueError(
            f"draws of shape {tuple(draws.shape)} and {draws.dtype}: pass log-probabilities (K, N, classes, *space)"
        )
    check_normalized(draws, dim=2)
    total: Tensor = torch.special.entr(wide(draws).exp().mean(0)).sum(1)
    return (total - entropies(draws, dim=2).mean(0)).clamp(min=0)


def brier(log_probs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> float:
    """Mean of ``sum_c (p_c - [c = target])^2``: 0 for sure and right, 2 for sure and wrong.

    Two classes give twice the binary score, in which only one of them is summed.

    Arguments:
        log_probs: normalized log-probabilities ``(N, classes, *space)``.
        targets: int64 classes ``(N, *space)``.
        ignore_index: targets that do not count.

    >>> round(brier(torch.tensor([[0.7, 0.3], [0.5, 0.5]]).log(), torch.tensor([0, 0])), 4)
    0.34
    """
    tally = ScoreTally(ignore_index, log_probs.device)
    tally.update(log_probs, targets)
    return tally.compute().brier


def counted(log_probs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> tuple[Tensor, Tensor]:
    """Predictions ``(M, classes)`` and targets ``(M,)`` that count, checked; waits for the device."""
    _check(log_probs, targets)
    kept = (targets != ignore_index).flatten()
    rows, classes = log_probs.movedim(1, -1).flatten(0, -2)[kept], targets.flatten()[kept]
    mass, strange = wide(rows).exp().sum(dtype=torch.float64).item(), outside(rows, classes, ignore_index).item()
    check_sums(len(rows), mass, strange, ignore_index)
    return rows, classes


def outside(log_probs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> Tensor:
    """How many targets that count are no class; a tensor, so that nothing waits for the device."""
    return ((targets != ignore_index) & ((targets < 0) | (targets >= log_probs.size(1)))).sum()


def check_sums(count: float, mass: float, strange: float, ignore_index: int) -> None:
    """ValueError for sums of which no mean can be taken.

    Arguments:
        count: targets that count.
        mass: sum of all probabilities of their predictions, which is ``count`` but for rounding.
        strange: how many of the targets are :func:`outside` the classes.
        ignore_index: targets that do not count.
    """
    if count == 0:
        raise ValueError(f"no targets: nothing was added, or all are ignore_index={ignore_index}; add a batch")
    if strange:
        raise ValueError(f"{strange:.0f} targets are not a class: pass 0 to classes - 1, or {ignore_index} to ignore")
    check_mass(mass / count)


def _total(values: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts, values, 0.0).sum(dtype=torch.float64)
