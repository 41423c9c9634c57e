"""Rules of arithmetic, of maxima and of reductions over axes.

Two different activations count as independent; an activation with itself is known to be the same variable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import gaussian, maxima
from .core import Moments, register
from .shape import aligned, full

Operand = Moments | Tensor | float
Dims = int | Sequence[int] | None


def as_moments(x: Operand, like: Moments) -> Moments:
    """A parameter or number as moments without variance; one that was made for the traced batch loses the batch."""
    if isinstance(x, Moments):
        return x
    if not isinstance(x, Tensor):
        x = torch.full_like(like.mean, x)
    if x.dim() == like.mean.dim() > 0 and x.shape[0] > 1 == like.mean.shape[0]:
        x = x[:1]
    return Moments(x, torch.zeros_like(x))


def _constant(x: Tensor | float, like: Moments) -> Tensor | float:
    return as_moments(x, like).mean if isinstance(x, Tensor) and x.dim() > 0 else x


@register(torch.add, "add", "add_", "__add__", "__iadd__", "__radd__")
def add(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    """``x + alpha y``; ``x + x`` is ``2 x``."""
    if input is other:
        return mul(input, 1 + alpha)
    if not isinstance(input, Moments):
        assert isinstance(other, Moments)
        return add(mul(other, alpha), input)
    if not isinstance(other, Moments):
        return replace(input, mean=input.mean + _scaled(_constant(other, input), alpha))
    return Moments(
        input.mean + _scaled(other.mean, alpha),
        input.var + _scaled(other.var, alpha**2),
    )


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 else factor * x


@register(torch.sub, torch.subtract, "sub", "sub_", "subtract", "subtract_", "__sub__", "__isub__")
def sub(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    """``x - alpha y``; ``x - x`` is 0."""
    return add(input, other, alpha=-alpha)


@register(torch.rsub, "__rsub__")
def rsub(input: Operand, other: Operand, *, alpha: float = 1) -> Moments:
    """``y - alpha x``."""
    return add(other, input, alpha=-alpha)


@register(torch.neg, torch.negative, torch.neg_, "neg", "neg_", "negative", "negative_", "__neg__")
def neg(input: Moments) -> Moments:
    """``-x``."""
    return Moments(-input.mean, input.var)


@register(torch.mul, torch.multiply, "mul", "mul_", "multiply", "multiply_", "__mul__", "__imul__", "__rmul__")
def mul(input: Operand, other: Operand) -> Moments:
    """Product of independents, or the square of one variable."""
    if not isinstance(input, Moments):
        input, other = other, input
    assert isinstance(input, Moments)
    if input is other:
        return square(input)
    if isinstance(other, Moments):
        return Moments(*gaussian.product(input.mean, input.var, other.mean, other.var))
    factor = _constant(other, input)
    return replace(input, mean=input.mean * factor, var=input.var * (factor * factor))


@register(torch.div, torch.divide, torch.true_divide, "div", "div_", "divide", "divide_", "true_divide", "__truediv__")
def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Moments:
    """``x / c`` for a constant c."""
    if isinstance(other, Moments) or rounding_mode is not None:
        raise ValueError("the quotient of two activations, and a rounded one, has no moment rule; divide by a constant")
    assert isinstance(input, Moments)
    return mul(input, 1 / _constant(other, input))


@register(torch.addcmul, "addcmul", "addcmul_")
def addcmul(input: Operand, tensor1: Operand, tensor2: Operand, *, value: float = 1) -> Moments:
    """``x + value y z``."""
    if isinstance(tensor1, Moments) or isinstance(tensor2, Moments):
        return add(input, mul(tensor1, tensor2), alpha=value)
    return add(input, tensor1 * tensor2, alpha=value)


@register(torch.square, torch.square_, "square", "square_")
def square(input: Moments) -> Moments:
    """``x^2``."""
    return Moments(*gaussian.square(input.mean, input.var))


@register(torch.pow, "pow", "pow_", "__pow__", "__ipow__")
def pow(input: Moments, exponent: Any) -> Moments:
    """``x^n`` for n = 1, 2, 3, ..."""
    if not isinstance(input, Moments) or not isinstance(exponent, int | float) or exponent < 1 or exponent % 1:
        raise ValueError(f"the moment rule of pow needs an integer exponent of 1 or more, not {exponent!r}")
    if exponent in (1, 2):
        return input if exponent == 1 else square(input)
    return Moments(*gaussian.quadrature(lambda x: x**exponent, input.mean, input.var))


@register(torch.maximum, "maximum")
def maximum(input: Operand, other: Operand) -> Moments:
    """The larger of two."""
    if not isinstance(input, Moments):
        input, other = other, input
    assert isinstance(input, Moments)
    if input is other:
        return input
    other = as_moments(other, input)
    return Moments(*maxima.maximum(input.mean, input.var, other.mean, other.var))


@register(torch.minimum, "minimum")
def minimum(input: Operand, other: Operand) -> Moments:
    """The smaller of two."""
    return neg(maximum(*(neg(x) if isinstance(x, Moments) else -x for x in (input, other))))


def _axes(dim: Dims, size: Sequence[int], *tensors: Tensor) -> list[int]:
    dims = range(len(size)) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    axes = sorted({d % len(size) for d in dims})
    if 0 in axes and size[0] != 1 and all(t.shape[0] == 1 for t in tensors):
        raise ValueError(f"a reduction of {tuple(size)} over its batch axis has no moments; reduce other axes")
    return axes


@register(torch.mean, "mean")
def mean(input: Moments, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Mean over axes of n independent entries: ``mean(m)``, ``mean(v) / n``."""
    mean, var, size = aligned(input)
    axes = _axes(dim, size, mean, var)
    n = math.prod([size[axis] for axis in axes])
    return Moments(mean.mean(axes, keepdim), var.mean(axes, keepdim) / n)


@register(torch.sum, "sum")
def sum(input: Moments, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Moments:
    """Sum over axes of independent entries."""
    mean, var, size = aligned(input)
    axes = _axes(dim, size, mean, var)
    n = math.prod([size[axis] for axis in axes])
    return Moments(mean.mean(axes, keepdim) * n, var.mean(axes, keepdim) * n)


@register(torch.amax, "amax")
def amax(input: Moments, dim: Dims = (), keepdim: bool = False) -> Moments:
    """Maximum over axes of independent entries."""
    mean, var, size = aligned(input)
    axes = _axes(dim, size, mean, var)
    constant = 1
    for axis in axes:
        if mean.shape[axis] == var.shape[axis] == 1:
            constant *= size[axis]
        else:
            pair = maxima.maximum_over(full(mean, size, [axis]), full(var, size, [axis]), axis)
            mean, var = pair[0].unsqueeze(axis), pair[1].unsqueeze(axis)
    mean, var = maxima.maximum_of(mean, var, constant)
    return Moments(mean, var) if keepdim else Moments(mean.squeeze(axes), var.squeeze(axes))


@register(torch.amin, "amin")
def amin(input: Moments, dim: Dims = (), keepdim: bool = False) -> Moments:
    """Minimum over axes of independent entries."""
    return neg(amax(Moments(-input.mean, input.var, input.size), dim, keepdim))


@register(torch.max, "max")
def max(input: Operand, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The three forms of ``torch.max``: of two, over all, and over an axis, where the indices are None."""
    if other is not None or isinstance(dim, Moments | Tensor):
        return maximum(input, dim if other is None else other)
    assert isinstance(input, Moments)
    return amax(input) if dim is None else (amax(input, dim, keepdim), None)


@register(torch.min, "min")
def min(input: Operand, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The three forms of ``torch.min``, as :func:`max`."""
    if other is not None or isinstance(dim, Moments | Tensor):
        return minimum(input, dim if other is None else other)
    assert isinstance(input, Moments)
    return amin(input) if dim is None else (amin(input, dim, keepdim), None)
