"""Moments of linear and convolutional responses, and the weight vectors of output channels in every weight layout.

A weight is ``(O, I/g, *k)``, that of a transposed convolution ``(I, O/g, *k)``; linear layers have no kernel axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def filters(weight: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """The weight vectors of the output channels, one per row: ``(O, fan)``.

    >>> filters(torch.zeros(6, 4, 3, 3), groups=2, transposed=True).shape
    torch.Size([8, 27])
    """
    return (_plain(weight, groups) if transposed else weight).flatten(1)


def scale_filters(weight: Tensor, factor: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """The weight with the weight vector of output channel o multiplied by ``factor[o]``; factor is ``(O,)``."""
    if not transposed:
        return weight * factor.view(-1, *[1] * (weight.dim() - 1))
    grouped = _grouped(weight, groups)
    return (grouped * factor.view(groups, 1, -1, *[1] * (weight.dim() - 2))).flatten(0, 1)


def linear_moments(
    weight: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    groups: int = 1,
    transposed: bool = False,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> tuple[Tensor, Tensor]:
    """Mean and variance ``(O,)`` of the response to independent inputs of per-channel moments ``(I,)``.

    ``mu_o = sum_c m_c sum_kk W_oc``, ``var_o = sum_c v_c sum_kk W_oc^2``: interior statistics, so that stride and
    dilation of a convolution do not matter. A strided transposed convolution has ``prod(stride)`` kinds of output
    positions (phases), each fed by its own taps: the result is the law of a position taken at random, the mean over
    phases of both moments plus the variance of the phase means.

    >>> linear_moments(torch.tensor([[1., -2.]]), torch.tensor([3., 1.]), torch.tensor([1., 0.5]))
    (tensor([1.]), tensor([3.]))
    """
    steps = per_axis(stride, weight.dim() - 2) if transposed else []
    plain = _plain(weight, groups) if transposed else weight
    if all(step == 1 for step in steps):
        return _respond(plain.flatten(1), mean, groups), _respond(plain.flatten(1).square(), var, groups)
    return _strided(plain, mean, var, groups, steps, per_axis(dilation, len(steps)))


def _plain(weight: Tensor, groups: int) -> Tensor:
    """The transposed layout ``(I, O/g, *k)`` as the plain one ``(O, I/g, *k)``."""
    if groups == 1:
        return weight.transpose(0, 1)
    return _grouped(weight, groups).transpose(1, 2).flatten(0, 1)


def _grouped(t: Tensor, groups: int) -> Tensor:
    return t.reshape(groups, len(t) // groups, *t.shape[1:])


def _respond(rows: Tensor, channels: Tensor, groups: int) -> Tensor:
    """``rows (O, I/g taps)`` times ``channels (I,)`` repeated per tap: one matrix-vector product."""
    taps = rows.shape[1] * groups // len(channels)
    repeated = channels.unsqueeze(-1).expand(-1, taps).reshape(-1) if taps > 1 else channels
    if groups == 1:
        return torch.mv(rows, repeated)
    return torch.bmm(_grouped(rows, groups), repeated.view(groups, -1, 1)).flatten()


def _strided(
    plain: Tensor, mean: Tensor, var: Tensor, groups: int, steps: Sequence[int], dilation: Sequence[int]
) -> tuple[Tensor, Tensor]:
    inputs = mean.view(groups, 1, -1).expand(-1, len(plain) // groups, -1).flatten(0, 1)
    phases = torch.einsum("oc,oc...->o...", inputs, plain)
    count = 1
    for axis, (step, spread) in enumerate(zip(steps, dilation, strict=True), start=1):
        tap = torch.arange(plain.shape[axis + 1], device=plain.device) * spread % step
        member = (tap.unsqueeze(1) == torch.arange(step, device=plain.device)).to(plain.dtype)
        phases = torch.tensordot(phases, member, ([1], [0]))
        count *= step
    phases = phases.flatten(1)
    mu = phases.mean(1)
    within = _respond(plain.flatten(1).square(), var, groups) / count
    return mu, within + (phases - mu.unsqueeze(1)).square().mean(1)


def per_axis(value: int | Sequence[int], axes: int) -> list[int]:
    """One value for each axis."""
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values
