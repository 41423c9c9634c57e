"""Rules of dropout, of random tensors (stochastic depth) and of constant tensors shaped like an activation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .core import Moments, register

RANDOM: frozenset[Any] = frozenset(
    {
        torch.rand,
        torch.randn,
        torch.rand_like,
        torch.randn_like,
        torch.bernoulli,
        torch.Tensor.bernoulli,
        torch.Tensor.bernoulli_,
        torch.Tensor.uniform_,
        torch.Tensor.normal_,
        torch.randint,
        torch.randint_like,
        torch.normal,
        torch.randperm,
        torch.multinomial,
        torch.Tensor.random_,
        torch.Tensor.exponential_,
    }
)
"""Functions whose result is a random variable even when no activation goes in."""


class Uniform(Moments):
    """A uniform random variable: also its floor and its comparison with a constant are known."""


@register(torch.floor, torch.floor_, "floor", "floor_")
def floor(input: Moments) -> Moments:
    """``floor(U(a, a + 1)) = floor(a) + Bernoulli(a - floor(a))``: stochastic depth by ``floor(keep + rand)``."""
    _uniform(input)
    low = input.mean - 0.5
    keep = low - low.floor()
    return Moments(low, keep * (1 - keep))


@register(torch.lt, torch.le, torch.less, "lt", "le", "less", "__lt__", "__le__")
def below(input: Moments, other: Any) -> Moments:
    """``U < c`` is Bernoulli."""
    _uniform(input)
    keep = ((other - input.mean) / (12 * input.var).sqrt() + 0.5).clamp(0, 1)
    return Moments(keep, keep * (1 - keep))


@register(torch.gt, torch.ge, torch.greater, "gt", "ge", "greater", "__gt__", "__ge__")
def above(input: Moments, other: Any) -> Moments:
    """``U > c`` is Bernoulli."""
    low = below(input, other)
    return Moments(1 - low.mean, low.var)


def _uniform(input: Any) -> None:
    if not isinstance(input, Uniform):
        raise ValueError("rounding and comparison have a moment rule for uniform random tensors only")


@register(torch.where, "where")
def where(condition: Any, input: Any, other: Any) -> Moments:
    """Mixture of the two with a random mask: mean ``p x + (1 - p) y``."""
    if not isinstance(condition, Moments):
        raise ValueError("where has a moment rule for a random mask only")
    p, (mx, vx), (my, vy) = condition.mean, _pair(input), _pair(other)
    mean = p * mx + (1 - p) * my
    return Moments(mean, p * (vx + (mx - mean) ** 2) + (1 - p) * (vy + (my - mean) ** 2))


def _pair(x: Any) -> tuple[Any, Any]:
    return (x.mean, x.var) if isinstance(x, Moments) else (x, 0.0)


@register(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout, torch.dropout_)
@register(torch.feature_dropout, torch.feature_dropout_)
def dropout(input: Moments, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any) -> Moments:
    """``m``, ``(v + m^2) / (1 - p) - m^2`` in training, the identity in evaluation."""
    if not _.get("train", training) or p == 0:
        return input
    if p == 1:
        return _like(input, 0.0, 0.0)
    return Moments(input.mean, (input.var + p * input.mean.square()) / (1 - p))


@register(F.alpha_dropout, F.feature_alpha_dropout)
def alpha_dropout(input: Moments, p: float = 0.5, training: bool = False, inplace: bool = False) -> Moments:
    """``a (x or alpha) + b`` with ``a = ((1 - p)(1 + p alpha^2))^(-1/2)``, ``b = -a p alpha``."""
    if not training or p == 0:
        return input
    if p == 1:
        return _like(input, 0.0, 0.0)
    alpha, keep = -1.7580993408473766, 1 - p
    scale = (keep * (1 + p * alpha**2)) ** -0.5
    var = keep * input.var + keep * p * (input.mean - alpha).square()
    return Moments(scale * keep * input.mean, scale**2 * var)


def _like(x: Any, mean: float, var: float, size: Any = None) -> Moments:
    """Constant moments where ``x`` is; without an activation to tell the device, as 0-dimensional tensors.

    A 0-dimensional CPU tensor combines with tensors on any device; the device in the recorded arguments may be "meta".
    """
    if isinstance(x, Moments):
        shape = [1] * (x.mean.dim() if size is None else len(size))
        return Moments(x.mean.new_full(shape, mean), x.mean.new_full(shape, var))
    return Moments(torch.tensor(mean, dtype=torch.float64), torch.tensor(var, dtype=torch.float64))


@register(torch.rand, torch.rand_like)
def rand(input: Any = None, *args: Any, **kwargs: Any) -> Moments:
    """Uniform on (0, 1)."""
    drawn = _like(input, 0.5, 1 / 12)
    return Uniform(drawn.mean, drawn.var)


@register(torch.randn, torch.randn_like)
def randn(input: Any = None, *args: Any, **kwargs: Any) -> Moments:
    """Standard normal."""
    return _like(input, 0.0, 1.0)


@register("uniform_")
def uniform(input: Any, *args: Any, generator: Any = None, **bounds: float) -> Moments:
    """Uniform between two numbers: ``uniform_(a, b)`` or ``uniform_(from=a, to=b)``."""
    given = dict(zip(("from", "to"), args, strict=False)) | bounds
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return _like(input, (low + high) / 2, (high - low) ** 2 / 12)


@register("normal_")
def normal(input: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Moments:
    """Normal."""
    return _like(input, mean, std**2)


@register("bernoulli_")
def bernoulli_(input: Any, p: float | Tensor = 0.5, *, generator: Any = None) -> Moments:
    """1 with probability p, else 0."""
    return bernoulli(p) if isinstance(p, Tensor) else _like(input, p, p * (1 - p))


@register(torch.bernoulli, "bernoulli")
def bernoulli(input: Any, p: float | None = None, *, generator: Any = None) -> Moments:
    """1 with probability p (a number, or the input itself), else 0."""
    if p is not None:
        return _like(input, p, p * (1 - p))
    chance = input.mean if isinstance(input, Moments) else input[:1] if input.dim() else input
    return Moments(chance, chance * (1 - chance))


@register(torch.zeros_like, torch.empty_like)
def zeros_like(input: Moments, **_: Any) -> Moments:
    """The constant 0; what is not initialized is about to be filled."""
    return _like(input, 0.0, 0.0)


@register(torch.ones_like)
def ones_like(input: Moments, **_: Any) -> Moments:
    """The constant 1."""
    return _like(input, 1.0, 0.0)


@register(torch.full_like)
def full_like(input: Moments, fill_value: float, **_: Any) -> Moments:
    """A constant."""
    return _like(input, fill_value, 0.0)


@register("new_zeros", "new_empty")
def new_zeros(input: Moments, *size: Any, **_: Any) -> Moments:
    """The constant 0 in another size; what is not initialized is about to be filled."""
    return _like(input, 0.0, 0.0, _sizes(size, _))


@register("new_ones")
def new_ones(input: Moments, *size: Any, **_: Any) -> Moments:
    """The constant 1 in another size."""
    return _like(input, 1.0, 0.0, _sizes(size, _))


@register("new_full")
def new_full(input: Moments, size: Any, fill_value: float, **_: Any) -> Moments:
    """A constant in another size."""
    return _like(input, fill_value, 0.0, size)


@register("fill_")
def fill_(input: Moments, value: float) -> Moments:
    """A constant."""
    return _like(input, value, 0.0)


@register("zero_")
def zero_(input: Moments) -> Moments:
    """The constant 0."""
    return _like(input, 0.0, 0.0)


def _sizes(size: tuple[Any, ...], named: dict[str, Any]) -> Any:
    size = size or (named["size"],)
    return size if isinstance(size[0], int) else size[0]
