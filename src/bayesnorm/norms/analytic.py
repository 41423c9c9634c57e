"""Analytic normalization: statistics of the data set, propagated through all preceding layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .base import Norm, Pair, root
from .geometry import Geometry
from .reparametrized import applies, reparametrized

EPS = 1e-5
"""Added to every input variance, hence in units of ||w||^2."""


@dataclass(frozen=True)
class Analytic:
    """Analytic normalization.

    Arguments:
        first_layer: ``"moments"``: the first layer treats the values of a patch as independent, as the paper does;
            ``"patch"``: it uses their covariance, measured on ``example``, which is exact.
    """

    first_layer: Literal["moments", "patch"] = "moments"

    def __post_init__(self) -> None:
        if self.first_layer not in ("moments", "patch"):
            raise ValueError(f"Analytic(first_layer={self.first_layer!r}): choose 'moments' or 'patch'")


class AnalyticNorm(Norm):
    """``mu_hat``, ``sigma_hat``: mean and std of ``w.x`` under the propagated statistics of the layer's input."""

    wants_moments = True
    forgets_input = True
    patch_mean: Tensor | None
    patch_cov: Tensor | None

    def __init__(self, channels: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        self.register_buffer("patch_mean", None)
        self.register_buffer("patch_cov", None)

    def statistics(self, weight: Tensor | None, geometry: Geometry, moments: Pair | None) -> Pair:
        """Mean and std of the response (or, without a weight, of the input), from the input's moments or patches."""
        if weight is not None and self.patch_mean is not None and self.patch_cov is not None:
            rows = geometry.filters(weight)
            square = ((rows @ self.patch_cov) * rows).sum(1) + EPS * rows.square().sum(1)
            return rows @ self.patch_mean, root(square)
        assert moments is not None
        mean, var = moments
        if weight is None:
            return mean, root(var + EPS)
        mu, square = geometry.moments(weight, mean, var + EPS)
        return mu, root(square)

    def effective(self, weight: Tensor, geometry: Geometry, moments: Pair | None, gain: Tensor | None) -> Pair:
        """Weight and bias of the plain layer that computes ``z * gain`` (None: ``z``)."""
        if self.patch_cov is not None or moments is None or not applies(weight, geometry):
            return super().effective(weight, geometry, moments, gain)
        mean, var = moments
        return reparametrized(weight, mean, var, self.center, self.spread, gain, EPS)
