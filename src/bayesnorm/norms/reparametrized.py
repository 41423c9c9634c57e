"""Effective weight and bias as one step of autograd: what :class:`Norm` computes in a dozen, on a CPU.

The gradient reads the weight three times instead of ten. Layouts and modes that it does not know are left to the plain
formulas, with which the tests compare it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..moments.core import is_eager
from .geometry import Geometry


def applies(weight: Tensor, geometry: Geometry) -> bool:
    """Whether :func:`reparametrized` may stand for the plain formulas here."""
    if not is_eager() or not torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return False
    dense = weight.is_contiguous() or _channels_last(weight)
    return dense and weight.device.type == "cpu" and geometry.groups == 1 and not geometry.transposed


def reparametrized(
    weight: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    center: Tensor,
    spread: Tensor,
    gain: Tensor | None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    r"""Weight and bias of the plain layer that computes ``z * gain``.

    .. math::
        \mu_o = \sum_i m_i w_{oi}, \quad \sigma_o^2 = \sum_i (v_i + \epsilon) w_{oi}^2, \quad
        a_o = \text{gain}_o / (\text{spread}_o \sigma_o), \quad
        w'_o = a_o w_o, \quad b'_o = -a_o (\mu_o + \text{center}_o \sigma_o)

    Arguments:
        weight: ``(O, I, *k)``.
        mean: ``(I,)``, of the input channels; None: 0.
        var: ``(I,)``; None: 1.
        center: ``(O,)``, in units of sigma.
        spread: ``(O,)``, in units of sigma.
        gain: ``(O,)``; None: 1.
        eps: added to ``var``.

    >>> weight, bias = reparametrized(torch.full((1, 4), 3.0), None, None, torch.zeros(1), torch.ones(1), None)
    >>> weight.tolist(), bias.tolist()
    ([[0.5, 0.5, 0.5, 0.5]], [-0.0])
    """
    inputs = (weight, mean, var, center, spread, gain)
    out: tuple[Tensor, Tensor] = _Reparametrized.apply(eps, *inputs)  # type: ignore[no-untyped-call]
    return out


def _plain(eps: float, weight: Tensor, mean: Tensor | None, var: Tensor | None, *others: Any) -> tuple[Tensor, Tensor]:
    """The same, differentiable any number of times."""
    rows, last = _rows(weight)
    found = _statistics(rows, rows.square(), *_of_each(mean, var, eps, rows, last), *others)
    return weight * found.factor.view(-1, *[1] * (weight.dim() - 1)), -found.raised * found.factor


class _Statistics(NamedTuple):
    """``sigma^2``, ``sigma``, ``a`` and ``mu + center * sigma``."""

    square: Tensor
    sigma: Tensor
    factor: Tensor
    raised: Tensor


def _statistics(
    rows: Tensor, squares: Tensor, mean: Tensor | None, var: Tensor | None, center: Tensor, spread: Tensor, gain: Any
) -> _Statistics:
    """Of weight vectors and their squares, from the moments of what each weight multiplies."""
    square = squares.sum(1) if var is None else torch.mv(squares, var)
    sigma = torch.where(square > 0, square, 1.0).sqrt()
    raised = center * sigma if mean is None else torch.addcmul(torch.mv(rows, mean), center, sigma)
    unit = spread * sigma
    return _Statistics(square, sigma, unit.reciprocal() if gain is None else gain / unit, raised)


class _Reparametrized(torch.autograd.Function):
    """All that has the size of the weight is written into one tensor, which is what is returned in the end."""

    @staticmethod
    def forward(ctx: Any, eps: float, *inputs: Any) -> tuple[Tensor, Tensor]:
        weight, mean, var, *others = inputs
        ctx.eps = eps
        rows, last = _rows(weight)
        mean, var = _of_each(mean, var, eps, rows, last)
        out = rows.square()
        found = _statistics(rows, out, mean, var, *others)
        ctx.save_for_backward(*inputs, mean, var, *found)
        torch.mul(rows, found.factor.unsqueeze(1), out=out)
        return _like_weight(out, weight), -found.raised * found.factor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # a checkpoint hands them out once
        inputs, (mean, var, square, sigma, factor, raised) = saved[:6], saved[6:]
        wanted = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *_differentiable(ctx.eps, inputs, grads, wanted)
        weight, channels, _, center, spread, _ = inputs
        rows, last = _rows(weight)
        grad = (grads[0] if last else grads[0].permute(0, 2, 3, 1)).flatten(1)
        out = grad * rows
        for_factor = out.sum(1) - grads[1] * raised
        for_mean = -grads[1] * factor
        relative = for_factor * factor
        # twice the gradient of sigma^2
        for_square = torch.where(square > 0, (for_mean * center - relative / sigma) / sigma, 0.0)
        for_var = None
        if wanted[2]:
            for_var = torch.mv(torch.mul(rows, rows, out=out).t(), 0.5 * for_square)
        torch.mul(rows, for_square.unsqueeze(1), out=out)
        if var is not None:
            out.mul_(var)
        out.addcmul_(grad, factor.unsqueeze(1))
        if mean is not None:
            out.addr_(for_mean, mean)
        return (
            None,
            _like_weight(out, weight),
            _collected(torch.mv(rows.t(), for_mean), len(channels), last) if wanted[1] else None,
            None if for_var is None else _collected(for_var, len(channels), last),
            for_mean * sigma if wanted[3] else None,
            -relative / spread if wanted[4] else None,
            for_factor / (spread * sigma) if wanted[5] else None,
        )


def _differentiable(eps: float, inputs: Any, grads: Any, wanted: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients with a graph of their own, for second derivatives."""
    chosen = [value for value, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(_plain(eps, *inputs), chosen, grads, create_graph=True, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def _channels_last(weight: Tensor) -> bool:
    return weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)


def _rows(weight: Tensor) -> tuple[Tensor, bool]:
    """The weight vectors ``(O, I * taps)`` in the order of memory, and whether the taps are the last axis there."""
    if not weight.is_contiguous() and _channels_last(weight):
        return weight.permute(0, 2, 3, 1).flatten(1), False
    return weight.flatten(1), True


def _like_weight(rows: Tensor, weight: Tensor) -> Tensor:
    """With the strides of the weight, by which torch chooses the layout of a convolution."""
    return rows.as_strided(weight.size(), weight.stride())


def _of_each(
    mean: Tensor | None, var: Tensor | None, eps: float, rows: Tensor, last: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Moments of the input channels ``(I,)`` as those of what each weight multiplies ``(I * taps,)``."""
    return _repeated(mean, rows, last), None if var is None else _repeated(var + eps, rows, last)


def _repeated(channels: Tensor | None, rows: Tensor, last: bool) -> Tensor | None:
    if channels is None or len(channels) == rows.size(1):
        return channels
    taps = rows.size(1) // len(channels)
    return (channels.unsqueeze(1).expand(-1, taps) if last else channels.expand(taps, -1)).reshape(-1)


def _collected(weights: Tensor, channels: int, last: bool) -> Tensor:
    """The sum over the taps of each input channel."""
    return weights.view(channels, -1).sum(1) if last else weights.view(-1, channels).sum(0)
