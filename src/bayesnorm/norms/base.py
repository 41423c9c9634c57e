"""What every normalization has: statistics of the response that are homogeneous in the weight vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .geometry import Geometry

Pair = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """``z = (w.x - mu_hat(w)) / sigma_hat(w)`` per output channel, ``mu_hat`` and ``sigma_hat`` 1-homogeneous in ``w``.

    Two constants per channel, in units of ``sigma_hat``, calibrate a converted network to the statistics that it was
    trained with: ``mu = mu_hat + center * sigma_hat`` and ``sigma = spread * sigma_hat``; a negative spread flips the
    sign of ``z``.
    """

    center: Tensor
    spread: Tensor
    wants_moments = False
    forgets_input = False

    def __init__(self, channels: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(channels, device=device, dtype=dtype))
        self.register_buffer("spread", torch.ones(channels, device=device, dtype=dtype))

    def options(self) -> dict[str, Any]:
        """The options of its specification, as they are in force."""
        return {}

    def statistics(self, weight: Tensor | None, geometry: Geometry, moments: Pair | None) -> Pair:
        """``(mu_hat, sigma_hat)`` of each output channel; ``weight`` None: of the input itself."""
        raise NotImplementedError

    def normalizer(self, weight: Tensor | None, geometry: Geometry, moments: Pair | None) -> Pair:
        """``(gain, offset)`` with ``z = gain * w.x + offset``."""
        mu, sigma = self.statistics(weight, geometry, moments)
        scale = 1 / (self.spread * sigma)
        return scale, -(mu + self.center * sigma) * scale

    def effective(self, weight: Tensor, geometry: Geometry, moments: Pair | None, gain: Tensor | None) -> Pair:
        """Weight and bias of the plain layer that computes ``z * gain`` (None: ``z``)."""
        factor, offset = self.normalizer(weight, geometry, moments)
        if gain is not None:
            factor, offset = factor * gain, offset * gain
        return geometry.scaled(weight, factor), offset

    @torch.no_grad()
    def calibrate_(self, statistics: Pair, mean: Tensor, std: Tensor) -> None:
        """Choose the constants so that the layer, now, normalizes by this mean and this (signed) std."""
        mu, sigma = (t.double() for t in statistics)
        self.center.copy_((mean.double() - mu) / sigma)
        self.spread.copy_(std.double() / sigma)

    def extra_repr(self) -> str:
        """Number of channels."""
        return f"{self.center.numel()}"


def root(square: Tensor) -> Tensor:
    """Square root with 1 in place of 0 (an all-zero filter), where value and gradient stay finite."""
    return torch.where(square > 0, square, 1.0).sqrt()
