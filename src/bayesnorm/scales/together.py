"""Bayesian scales of many layers, end to end: one operation in place of one per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..moments.core import wide
from .base import Scale
from .bayes import U_MAX, U_MIN, Bayes, BayesScale, divergence, rho


def alike(scales: Sequence[Scale]) -> list[list[int]]:
    """Places of the scales that can be laid end to end: a scalar posterior of the same specification, dtype, device."""
    groups: dict[tuple[Bayes, torch.dtype, torch.device], list[int]] = {}
    for place, scale in enumerate(scales):
        if type(scale) is BayesScale and not scale.spec.stochastic_bias:
            groups.setdefault((scale.spec, scale.s.dtype, scale.s.device), []).append(place)
    return list(groups.values())


def factors(scales: Sequence[BayesScale], draws: Tensor) -> tuple[Tensor, ...]:
    """``S = s + sigma xi`` of each of these scales that are alike, ``(rows, channels)``.

    Arguments:
        draws: ``(rows, channels of all)``.
    """
    s, u = _joined(scales)
    made = torch.addcmul(s, draws.to(s.dtype), rho(u))
    return made.split_with_sizes([scale.s.numel() for scale in scales], 1)


def output_moments(scales: Sequence[Scale]) -> tuple[Tensor, Tensor] | None:
    """Mean and variance of the outputs at the mean scales, of all channels; None where dtype or device differ."""
    if len({(scale.s.dtype, scale.s.device) for scale in scales}) > 1:
        return None
    bayes = [scale for scale in scales if type(scale) is BayesScale and not scale.spec.stochastic_bias]
    if len(bayes) < len(scales):
        pairs = [scale.output_moments() for scale in scales]
        return wide(torch.cat([mean for mean, _ in pairs])), wide(torch.cat([var for _, var in pairs]))
    s, b, offset = (torch.cat(parts) for parts in zip(*[(x.s, x.b, x.offset) for x in bayes], strict=True))
    return wide(torch.addcmul(offset, b, s)), wide(s**2)


def kl(scales: Sequence[Scale]) -> list[Tensor]:
    """KL divergences whose sum is that of all these scales; empty without a posterior."""
    groups = alike(scales)
    joined = {place for places in groups for place in places}
    rest = [scale.kl() for place, scale in enumerate(scales) if place not in joined]
    found = [part for part in rest if part is not None]
    for places in groups:
        members = [scale for place in places if isinstance(scale := scales[place], BayesScale)]
        s, u = _joined(members)
        found.append(divergence(members[0].spec, wide(s), wide(u)).sum())
    return found


@torch.no_grad()
def box_(scales: Sequence[BayesScale]) -> None:
    """Keep s and u of all these scales where the posterior is defined."""
    floors: dict[float, list[Tensor]] = {}
    for scale in scales:
        floors.setdefault(scale.spec.floor, []).append(scale.s)
    for floor, parameters in floors.items():
        torch._foreach_clamp_min_(parameters, floor)
    variances: list[Tensor] = [parameter for scale in scales for parameter in scale.variance_parameters()]
    if variances:
        torch._foreach_clamp_min_(variances, U_MIN)
        torch._foreach_clamp_max_(variances, U_MAX)


def _joined(scales: Sequence[BayesScale]) -> tuple[Tensor, Tensor]:
    """s and u of all channels."""
    return torch.cat([scale.s for scale in scales]), torch.cat([scale.u.expand_as(scale.s) for scale in scales])
