"""Weight normalization: the length of the weight vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Norm, Pair, root
from .geometry import Geometry
from .reparametrized import applies, reparametrized


@dataclass(frozen=True)
class Weight:
    """Weight normalization: ``mu_hat = 0``, ``sigma_hat = ||w||``."""


class WeightNorm(Norm):
    """``mu_hat = 0``, ``sigma_hat = ||w||``: a function of the weight alone."""

    def statistics(self, weight: Tensor | None, geometry: Geometry, moments: Pair | None) -> Pair:
        """Zero and the length of each weight vector; without a weight zero and one: an affine map by the constants."""
        if weight is None:
            return torch.zeros_like(self.center), torch.ones_like(self.center)
        sigma = root(geometry.square_norms(weight))
        return torch.zeros_like(sigma), sigma

    def effective(self, weight: Tensor, geometry: Geometry, moments: Pair | None, gain: Tensor | None) -> Pair:
        """Weight and bias of the plain layer that computes ``z * gain`` (None: ``z``)."""
        if not applies(weight, geometry):
            return super().effective(weight, geometry, moments, gain)
        return reparametrized(weight, None, None, self.center, self.spread, gain)
