"""Analytic normalization: statistics of the data set, propagated through all preceding layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..moments.core import HALF, wide
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

    def __init__(
        self,
        channels: int,
        spec: Analytic,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        self.spec = spec
        self.register_buffer("patch_mean", None)
        self.register_buffer("patch_cov", None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The statistics of patches stay in float32 or better: a rounded covariance has negative variances."""
        mean, cov = self.patch_mean, self.patch_cov
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if mean is not None and cov is not None and self.patch_cov is not None and self.patch_cov.dtype in HALF:
            device = self.patch_cov.device
            self.patch_mean, self.patch_cov = wide(mean).to(device), wide(cov).to(device)
        return self

    def options(self) -> dict[str, Any]:
        """Those of its specification."""
        return vars(self.spec)

    def statistics(self, weight: Tensor | None, geometry: Geometry, moments: Pair | None) -> Pair:
        """Mean and std of the response (or, without a weight, of the input), from the input's moments or patches."""
        if weight is not None and self.patch_mean is not None and self.patch_cov is not None:
            rows = geometry.filters(weight)
            square = ((rows @ wide(self.patch_cov)) * rows).sum(1) + EPS * rows.square().sum(1)
            return rows @ wide(self.patch_mean), root(square)
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
