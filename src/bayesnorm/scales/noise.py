"""A scale with noise like that of batch normalization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Pair, Scale


@dataclass(frozen=True)
class Noise:
    """Fixed noise, one draw per sample and channel, shared over space: ``y = (z + V) U s + b``.

    Arguments:
        sigma_u: std of the factor ``U ~ N(1, sigma_u^2)``.
        sigma_v: std of the summand ``V ~ N(0, sigma_v^2)``. ``bn_noise.apply_`` sets both to what a network showed.
    """

    sigma_u: float = 0.05
    sigma_v: float = 0.05

    def __post_init__(self) -> None:
        for name in ("sigma_u", "sigma_v"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ValueError(f"Noise({name}={value!r}): a std must be finite and not negative")


class NoiseScale(Scale):
    """``y = (z + V) U s + b`` when sampling, ``z s + b`` in evaluation."""

    draws_per_channel = 2
    sigma_u: Tensor
    sigma_v: Tensor

    def __init__(
        self,
        channels: int,
        spec: Noise,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        self.asked = spec
        self.register_buffer("sigma_u", torch.full((channels,), spec.sigma_u, device=device, dtype=dtype))
        self.register_buffer("sigma_v", torch.full((channels,), spec.sigma_v, device=device, dtype=dtype))

    def options(self) -> dict[str, Any]:
        """Those of its specification; ``bn_noise.apply_`` sets the buffers alone."""
        return vars(self.asked)

    def inner(self) -> tuple[Tensor | None, Tensor | None]:
        """Gain s; the shift follows the noise."""
        return self.s, None

    def spread(self) -> Tensor:
        """Std of ``U s``."""
        return self.sigma_u * self.s.abs()

    def outer(self, draws: Tensor) -> Pair:
        """``U`` and ``V U s + b``."""
        return noisy_affine(draws, self.sigma_u, self.sigma_v, self.s, self.b)


def noisy_affine(draws: Tensor, sigma_u: Tensor, sigma_v: Tensor, s: Tensor, b: Tensor) -> Pair:
    """``A = U``, ``B = V U s + b``, so that ``(z s) A + B = (z + V) U s + b``."""
    first, second = draws.to(s.dtype).chunk(2, 1)
    u = 1 + sigma_u * first
    return u, torch.addcmul(b, second * (sigma_v * s), u)
