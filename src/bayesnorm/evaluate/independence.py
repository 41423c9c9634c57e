"""How many pixels of an image count as one: neighbours are mistaken together."""

from __future__ import annotations

import torch
from torch import Tensor

from .metrics import IGNORE, _check


class IndependenceTally:
    """Sums from which the design effect of images follows, as surveys have it of clusters (Kish, 1965).

    With the residual ``r = [target = c] - p_c`` of a pixel, a vector over the classes, it is ``sum_images |sum_pixels
    r|^2 / sum_pixels |r|^2``: 1 for residuals that do not know of each other, the number of pixels for images that are
    mistaken as a whole. A likelihood that takes pixels as independent is that many times too sure of what it has seen.

    >>> tally = IndependenceTally()
    >>> half = torch.full((2, 2, 1, 4), 0.5).log()
    >>> tally.update(half, torch.tensor([[[0, 0, 0, 0]], [[1, 1, 1, 1]]]))
    >>> round(tally.compute(), 4)
    4.0
    """

    def __init__(self, ignore_index: int = IGNORE) -> None:
        self.ignore_index = ignore_index
        self._sums = torch.zeros(2, dtype=torch.float64)

    @torch.no_grad()
    def update(self, log_probs: Tensor, targets: Tensor) -> None:
        """Add images.

        Arguments:
            log_probs: normalized log-probabilities ``(N, classes, *space)``.
            targets: int64 classes ``(N, *space)``; what is none of them does not count.
        """
        _check(log_probs, targets)
        targets = targets.flatten(1)
        counts = (targets != self.ignore_index) & (targets >= 0) & (targets < log_probs.size(1))
        probs = torch.where(counts[:, None], log_probs.double().exp().flatten(2), 0.0)
        classes = targets.where(counts, 0)
        seen = counts.to(probs.dtype)
        residuals = torch.zeros_like(probs[:, :, 0]).scatter_add_(1, classes, seen) - probs.sum(2)
        right = probs.gather(1, classes[:, None]).sum()
        apart = probs.square().sum() - 2 * right + seen.sum()
        self._sums = self._sums.to(probs.device) + torch.stack([residuals.square().sum(), apart])

    def compute(self) -> float | None:
        """Of what was added; None where nothing is wrong by anything."""
        together, apart = self._sums.tolist()
        return together / apart if apart > 0 else None
