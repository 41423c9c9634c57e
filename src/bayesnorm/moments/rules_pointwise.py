"""Rules of activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import gaussian, softmaxes
from .core import Moments, Target, elementwise, register
from .shape import aligned, chunk, full

_nn = torch._C._nn


@register(torch.relu, torch.relu_, F.relu, "relu", "relu_")
@elementwise
def relu(input: Moments, inplace: bool = False) -> Moments:
    """``max(x, 0)``."""
    return Moments(*gaussian.relu(input.mean, input.var))


@register(F.leaky_relu, F.leaky_relu_, _nn.leaky_relu)
@elementwise
def leaky_relu(input: Moments, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    """``max(x, 0) + slope min(x, 0)``."""
    return Moments(*gaussian.leaky_relu(input.mean, input.var, negative_slope))


@register(F.prelu, torch.prelu, "prelu")
def prelu(input: Moments, weight: Tensor) -> Moments:
    """Leaky ReLU with one slope, or one per channel."""
    slope = weight.reshape(1, -1, *[1] * (input.mean.dim() - 2)) if weight.numel() > 1 else weight.reshape(())
    return Moments(*gaussian.leaky_relu(input.mean, input.var, slope))


@register(F.hardtanh, F.hardtanh_, _nn.hardtanh)
@elementwise
def hardtanh(input: Moments, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Moments:
    """``min(max(x, lo), hi)``; ``nn.ReLU6`` arrives here too."""
    return Moments(*gaussian.hardtanh(input.mean, input.var, float(min_val), float(max_val)))


@register(F.relu6)
@elementwise
def relu6(input: Moments, inplace: bool = False) -> Moments:
    """``min(max(x, 0), 6)``."""
    return Moments(*gaussian.relu6(input.mean, input.var))


@register(torch.clamp, torch.clamp_, torch.clip, torch.clip_, "clamp", "clamp_", "clip", "clip_")
def clamp(input: Moments, min: float | None = None, max: float | None = None) -> Moments:
    """Clamp to numbers, either of which may be None."""
    return Moments(*gaussian.clamp(input.mean, input.var, min, max))


@register(torch.clamp_min, torch.clamp_min_, "clamp_min", "clamp_min_")
def clamp_min(input: Moments, min: float) -> Moments:
    """``max(x, lo)``."""
    return clamp(input, min=min)


@register(torch.clamp_max, torch.clamp_max_, "clamp_max", "clamp_max_")
def clamp_max(input: Moments, max: float) -> Moments:
    """``min(x, hi)``."""
    return clamp(input, max=max)


@register(F.hardsigmoid, _nn.hardsigmoid)
@elementwise
def hardsigmoid(input: Moments, inplace: bool = False) -> Moments:
    """``min(max(x / 6 + 1/2, 0), 1)``."""
    return Moments(*gaussian.hardsigmoid(input.mean, input.var))


@register(F.hardswish, _nn.hardswish)
@elementwise
def hardswish(input: Moments, inplace: bool = False) -> Moments:
    """``x hardsigmoid(x)``."""
    return Moments(*gaussian.hardswish(input.mean, input.var))


@register(torch.abs, torch.abs_, torch.absolute, "abs", "abs_", "absolute", "__abs__")
@elementwise
def abs(input: Moments) -> Moments:
    """``|x|``."""
    return Moments(*gaussian.abs(input.mean, input.var))


@register(torch.exp, torch.exp_, "exp", "exp_")
@elementwise
def exp(input: Moments) -> Moments:
    """``e^x``."""
    return Moments(*gaussian.exp(input.mean, input.var))


@register(torch.sin, torch.sin_, "sin", "sin_")
@elementwise
def sin(input: Moments) -> Moments:
    """``sin x``."""
    return Moments(*gaussian.sin(input.mean, input.var))


@register(torch.cos, torch.cos_, "cos", "cos_")
@elementwise
def cos(input: Moments) -> Moments:
    """``cos x``."""
    return Moments(*gaussian.cos(input.mean, input.var))


@register(F.elu, F.elu_, _nn.elu)
@elementwise
def elu(input: Moments, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """``alpha (e^x - 1)`` below 0."""
    return Moments(*gaussian.elu(input.mean, input.var, alpha))


@register(F.selu, torch.selu, torch.selu_)
@elementwise
def selu(input: Moments, inplace: bool = False) -> Moments:
    """The self-normalizing ELU."""
    return Moments(*gaussian.elu(input.mean, input.var, 1.6732632423543772, 1.0507009873554805))


@register(F.celu, torch.celu, torch.celu_)
@elementwise
def celu(input: Moments, alpha: float = 1.0, inplace: bool = False) -> Moments:
    """``alpha (e^(x / alpha) - 1)`` below 0."""
    return Moments(*gaussian.elu(input.mean, input.var, alpha, 1.0, 1 / alpha))


@register(F.gelu)
@elementwise
def gelu(input: Moments, approximate: str = "none") -> Moments:
    """GELU, exact or with tanh."""
    return Moments(*gaussian.quadrature(lambda x: F.gelu(x, approximate=approximate), input.mean, input.var))


@register(F.softplus)
@elementwise
def softplus(input: Moments, beta: float = 1, threshold: float = 20) -> Moments:
    """``log(1 + e^(beta x)) / beta``."""
    return Moments(*gaussian.quadrature(lambda x: F.softplus(x, beta, threshold), input.mean, input.var))


def smooth(f: Callable[[Tensor], Tensor], *targets: Target, nodes: int = 65) -> None:
    """Register a smooth function of one argument, by quadrature."""

    @elementwise
    def rule(input: Moments, inplace: bool = False) -> Moments:
        return Moments(*gaussian.quadrature(f, input.mean, input.var, nodes))

    register(*targets)(rule)


smooth(F.silu, F.silu, _nn.silu)
smooth(F.mish, F.mish, _nn.mish)
smooth(F.logsigmoid, F.logsigmoid)
smooth(torch.sigmoid, torch.sigmoid, torch.sigmoid_, torch.special.expit, F.sigmoid, "sigmoid", "sigmoid_")
# The poles of tanh are twice as near to the real axis as those of the sigmoid.
smooth(torch.tanh, torch.tanh, torch.tanh_, F.tanh, "tanh", "tanh_", nodes=129)
smooth(lambda x: x - torch.tanh(x), F.tanhshrink, nodes=129)
smooth(torch.erf, torch.erf, torch.erf_, "erf", "erf_", nodes=129)


@register(F.glu)
def glu(input: Moments, dim: int = -1) -> Moments:
    """First half times the sigmoid of the second, as independents."""
    mean, var, size = aligned(input)
    (mean, gate), (var, gate_var) = chunk(mean, size, 2, dim), chunk(var, size, 2, dim)
    return Moments(*gaussian.product(mean, var, *gaussian.quadrature(torch.sigmoid, gate, gate_var)))


@register(F.softmax, torch.softmax, torch.special.softmax, "softmax")
def softmax(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """Softmax over an axis."""
    mean, var, size = aligned(input)
    dim = _axis(dim, len(size))
    if mean.shape[dim] == var.shape[dim] == 1:
        return Moments(*softmaxes.softmax(mean, var, dim, size[dim]))
    return Moments(*softmaxes.softmax(full(mean, size, [dim]), full(var, size, [dim]), dim))


@register(F.log_softmax, torch.log_softmax, torch.special.log_softmax, "log_softmax")
def log_softmax(input: Moments, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Moments:
    """Log-softmax over an axis."""
    mean, var, size = aligned(input)
    dim = _axis(dim, len(size))
    return Moments(*softmaxes.log_softmax(full(mean, size, [dim]), full(var, size, [dim]), dim))


def _axis(dim: int | None, rank: int) -> int:
    return (0 if rank in (0, 1, 3) else 1) if dim is None else dim
