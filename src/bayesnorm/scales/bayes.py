"""The Bayesian scale: a learned normal posterior per channel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..moments.core import wide
from .base import Pair, Scale
from .noise import noisy_affine

U_MIN, U_MAX = -10.0, 1e3
V_PRIOR = 10.0
"""Std of the prior of V where that of the scale is log-uniform and has none."""
RATIO_MAX = 10.0
"""Largest |b| with which a converted channel starts. A larger bias would turn the noise of a dead channel's scale into
noise of its output, so the rest of it stands outside the scale as a constant."""


@dataclass(frozen=True)
class Bayes:
    """Posterior ``q(S) = N(s, sigma^2)``, ``y = (z + b) S``.

    Arguments:
        prior: std s0 of the prior ``N(1, s0^2)``, or ``"log-uniform"`` (scale-uniform, as in variational dropout).
        sigma_init: first sigma, relative to s.
        per_layer_variance: one sigma for all channels of a layer.
        stochastic_bias: ``y = (z + V) U s + b`` with posteriors ``U ~ N(1, sigma_u^2)`` and ``V ~ N(0, sigma_v^2)``;
            the prior of V is ``N(0, prior^2)``.
        floor: smallest s; ``project_`` keeps it.
    """

    prior: float | Literal["log-uniform"] = 10.0
    sigma_init: float = 0.1
    per_layer_variance: bool = False
    stochastic_bias: bool = False
    floor: float = 1e-8

    def __post_init__(self) -> None:
        if self.prior != "log-uniform" and not _positive(self.prior):
            raise ValueError(f"Bayes(prior={self.prior!r}): pass a positive std or 'log-uniform'")
        for name in ("sigma_init", "floor"):
            if not _positive(getattr(self, name)):
                raise ValueError(f"Bayes({name}={getattr(self, name)!r}): pass a positive number")


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf


def rho(u: Tensor) -> Tensor:
    """``e^u`` for u < 0, ``1 + u`` for u >= 0: the derivatives of sigma and of log sigma both lie in (0, 1].

    >>> rho(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.3679, 1.0000, 3.0000])
    """
    return torch.where(u < 0, u.clamp(max=0).exp(), 1 + u)


def log_rho(u: Tensor) -> Tensor:
    """``log rho(u)`` without a detour through a small sigma."""
    return torch.where(u < 0, u, torch.log1p(u.clamp(min=0)))


def rho_inverse(sigma: Tensor) -> Tensor:
    """The u with ``rho(u) = sigma``."""
    return torch.where(sigma < 1, sigma.clamp(min=1e-30).log(), sigma - 1)


def kl_normal(mean: Tensor, u: Tensor, s0: float, prior_mean: float = 1.0) -> Tensor:
    """``KL(N(mean, rho(u)^2) || N(prior_mean, s0^2))`` per channel."""
    return math.log(s0) - log_rho(u) + (rho(u) ** 2 + (mean - prior_mean) ** 2) / (2 * s0**2) - 0.5


def kl_log_uniform(mean: Tensor, u: Tensor) -> Tensor:
    """KL to the log-uniform prior, with ``alpha = sigma^2 / mean^2``, whose limit for large alpha is 0 (error below
    0.0095).

    >>> kl_log_uniform(torch.ones(1), torch.tensor([9.0])).item() < 0.02
    True
    """
    log_alpha = 2 * (log_rho(u) - mean.abs().log())
    return 0.63576 * torch.sigmoid(-(1.87320 + 1.48695 * log_alpha)) + 0.5 * nn.functional.softplus(-log_alpha)


def divergence(spec: Bayes, s: Tensor, u: Tensor) -> Tensor:
    """KL divergence per channel from ``N(s, rho(u)^2)`` to the prior."""
    if isinstance(spec.prior, str):
        return kl_log_uniform(s.clamp(min=spec.floor), u)
    return kl_normal(s, u, spec.prior)


class BayesScale(Scale):
    """Posterior over the scale, drawn per sample when sampling, at its mean in evaluation.

    ``sigma = rho(u)``. ``offset`` is a constant outside the scale, zero but for converted channels of vanishing scale.
    """

    u: nn.Parameter
    v: nn.Parameter
    offset: Tensor

    def __init__(
        self,
        channels: int,
        spec: Bayes,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.draws_per_channel = 2 if spec.stochastic_bias else 1
        super().__init__(channels, device=device, dtype=dtype)
        self.spec = spec
        size = 1 if spec.per_layer_variance else channels
        start = rho_inverse(torch.full((size,), spec.sigma_init, device=device, dtype=dtype))
        self.u = nn.Parameter(start)
        if spec.stochastic_bias:
            self.v = nn.Parameter(start.clone())
        self.register_buffer("offset", torch.zeros(channels, device=device, dtype=dtype))

    def options(self) -> dict[str, Any]:
        """Those of its specification."""
        return vars(self.spec)

    def variance_parameters(self) -> list[nn.Parameter]:
        """u, and v with the stochastic bias."""
        return [self.u, self.v] if self.spec.stochastic_bias else [self.u]

    def spread(self) -> Tensor:
        """Std of the scale of each channel."""
        sigma = rho(self.u)
        return (sigma * self.s.abs() if self.spec.stochastic_bias else sigma).expand_as(self.s)

    def folded(self) -> Pair:
        """``z s + b s`` (``z s + b`` with the stochastic bias)."""
        if self.spec.stochastic_bias:
            return self.s, self.b
        return self.s, torch.addcmul(self.offset, self.b, self.s)

    def inner(self) -> tuple[Tensor | None, Tensor | None]:
        """``z + b``: the bias stands inside the scale."""
        return (self.s, None) if self.spec.stochastic_bias else (None, self.b)

    def outer(self, draws: Tensor) -> Pair:
        """``S = s + sigma xi`` and the constant outside."""
        if self.spec.stochastic_bias:
            return noisy_affine(draws, rho(self.u), rho(self.v), self.s, self.b)
        return torch.addcmul(self.s, draws.to(self.s.dtype), rho(self.u)), self.offset

    def kl(self) -> Tensor:
        """KL divergence to the prior, summed over the channels."""
        spec, s, u = self.spec, wide(self.s), wide(self.u)
        if spec.stochastic_bias:
            s0 = V_PRIOR if isinstance(spec.prior, str) else spec.prior
            one = torch.ones_like(s)
            scale = kl_log_uniform(one, u) if isinstance(spec.prior, str) else kl_normal(one, u, s0)
            return (scale + kl_normal(torch.zeros_like(one), wide(self.v), s0, 0.0)).sum()
        return divergence(spec, s, u).sum()

    @torch.no_grad()
    def set_(self, s: Tensor, b: Tensor) -> None:
        """Start from the map ``z * s + b`` with sigma ``sigma_init * s``."""
        spec = self.spec
        self.s.copy_(s)
        if spec.stochastic_bias:
            self.b.copy_(b)
            return
        inside = b.clamp(-RATIO_MAX * s, RATIO_MAX * s)
        self.b.copy_(torch.where(s > 0, inside / s, 0.0))
        self.offset.copy_(b - inside)
        sigma = spec.sigma_init * s
        sigma = sigma.square().mean().sqrt().expand_as(self.u) if spec.per_layer_variance else sigma
        self.u.copy_(rho_inverse(sigma).clamp(U_MIN, U_MAX))

    def extra_repr(self) -> str:
        """Channels and the options that differ from the defaults."""
        changed = [f"{k}={v!r}" for k, v in vars(self.spec).items() if v != getattr(Bayes(), k)]
        return ", ".join([f"{self.s.numel()}", *changed])
