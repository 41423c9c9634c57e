"""Rules of linear maps, normalizations, pooling and resampling.

Statistics are those of the interior of a map, constant over space: what is not constant is averaged over space first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import maxima
from .core import Moments, register
from .linear import linear_moments
from .shape import aligned, full, over_space

Axes = int | Sequence[int]


def _respond(input: Moments, weight: Tensor, bias: Tensor | None, inputs: int, **layout: Any) -> Moments:
    mean, var = (t.expand(-1, inputs, *t.shape[2:]).flatten() for t in over_space(input))
    mu, spread = linear_moments(weight, mean, var, **layout)
    shape = [1, -1] + [1] * (weight.dim() - 2)
    return Moments((mu if bias is None else mu + bias).view(shape), spread.view(shape))


@register(torch.conv1d, torch.conv2d, torch.conv3d)
def conv(
    input: Moments,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Axes = 1,
    padding: Any = 0,
    dilation: Axes = 1,
    groups: int = 1,
) -> Moments:
    """Convolution: ``sum_c m_c sum W_oc + b``, ``sum_c v_c sum W_oc^2``."""
    return _respond(input, weight, bias, weight.shape[1] * groups, groups=groups)


@register(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def conv_transpose(
    input: Moments,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Axes = 1,
    padding: Axes = 0,
    output_padding: Axes = 0,
    groups: int = 1,
    dilation: Axes = 1,
) -> Moments:
    """Transposed convolution, averaged over the phases of its stride."""
    layout = {"groups": groups, "transposed": True, "stride": stride, "dilation": dilation}
    return _respond(input, weight, bias, len(weight), **layout)


@register(F.linear)
def linear(input: Moments, weight: Tensor, bias: Tensor | None = None) -> Moments:
    """``x W' + b`` on the last axis."""
    mean, var = (t.expand(*t.shape[:-1], weight.shape[-1]) for t in aligned(input)[:2])
    return Moments(F.linear(mean, weight, bias), F.linear(var, weight.square()))


@register(torch.matmul, torch.mm, "matmul", "mm", "__matmul__")
def matmul(input: Moments, other: Tensor) -> Moments:
    """``x W`` for a constant W."""
    if not isinstance(input, Moments) or not isinstance(other, Tensor):
        raise ValueError("matmul has a moment rule only for an activation times a parameter, in this order")
    mean, var, size = aligned(input)
    mean, var = full(mean, size, [-1]), full(var, size, [-1])
    return Moments(mean @ other, var @ other.square())


@register(torch.addmm, "addmm")
def addmm(input: Tensor, mat1: Moments, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Moments:
    """``beta b + alpha x W``."""
    product = matmul(mat1, mat2)
    return Moments(beta * input + alpha * product.mean, alpha**2 * product.var)


@register(torch.einsum)
def einsum(equation: str, *operands: Any) -> Moments:
    """A sum of products of one activation with constants: the variance with all constants squared."""
    terms = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    if sum(isinstance(term, Moments) for term in terms) != 1:
        raise ValueError(f"einsum {equation!r} has a moment rule only for one activation and any number of parameters")
    means, variances = [], []
    for term in terms:
        if isinstance(term, Moments):
            mean, var, size = aligned(term)
            means.append(full(mean, size, range(1, len(size))))
            variances.append(full(var, size, range(1, len(size))))
        else:
            means.append(term)
            variances.append(term.square())
    return Moments(torch.einsum(equation, *means), torch.einsum(equation, *variances))


def _normalized(input: Moments, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Moments:
    """What a normalization hands on: ``(bias, weight^2)``, ``(0, 1)`` without them."""
    ones = [1] * input.mean.dim()
    mean = input.mean.new_zeros(ones) if bias is None else bias.reshape(shape)
    var = input.mean.new_ones(ones) if weight is None else weight.square().reshape(shape)
    return Moments(mean, var)


def _on_channels(input: Moments) -> list[int]:
    return [1, -1] + [1] * (input.mean.dim() - 2)


@register(F.batch_norm)
def batch_norm(
    input: Moments,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> Moments:
    """Batch normalization in either mode."""
    return _normalized(input, weight, bias, _on_channels(input))


@register(F.instance_norm)
def instance_norm(
    input: Moments,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> Moments:
    """Instance normalization."""
    return _normalized(input, weight, bias, _on_channels(input))


@register(F.group_norm, torch.group_norm)
def group_norm(
    input: Moments, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, *_: Any, **__: Any
) -> Moments:
    """Group normalization."""
    return _normalized(input, weight, bias, _on_channels(input))


@register(F.layer_norm, torch.layer_norm)
def layer_norm(
    input: Moments,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *_: Any,
    **__: Any,
) -> Moments:
    """Layer normalization over the last axes."""
    shape = [1] * (input.mean.dim() - len(normalized_shape)) + list(normalized_shape)
    return _normalized(input, weight, bias, shape)


@register(F.rms_norm, torch.rms_norm)
def rms_norm(
    input: Moments, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Moments:
    """``x / rms(x) weight``, the root mean square taken for constant: ``sqrt(mean(m^2 + v))`` over the last axes."""
    mean, var, _ = aligned(input)
    axes = list(range(-len(normalized_shape), 0))
    power = mean.square().mean(axes, keepdim=True) + var.mean(axes, keepdim=True)
    inverse = (power + (torch.finfo(mean.dtype).eps if eps is None else eps)).rsqrt()
    factor = inverse if weight is None else inverse * weight
    return Moments(mean * factor, var * factor.square())


def _window(kernel_size: Axes, axes: int) -> int:
    sides = [kernel_size] if isinstance(kernel_size, int) else list(kernel_size)
    return math.prod(sides * axes if len(sides) == 1 else sides)


def _pooled_axes(input: Moments) -> int:
    return input.mean.dim() - 2


@register(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
def avg_pool(
    input: Moments,
    kernel_size: Axes,
    stride: Any = None,
    padding: Axes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Moments:
    """Average of n independents: ``m``, ``v / n``."""
    mean, var = over_space(input)
    n = _window(kernel_size, _pooled_axes(input))
    divisor = divisor_override or n
    return Moments(mean * (n / divisor), var * (n / divisor**2))


@register(F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)
def max_pool(input: Moments, kernel_size: Axes, *_: Any, **__: Any) -> Moments:
    """Maximum of n independents."""
    return Moments(*maxima.maximum_of(*over_space(input), _window(kernel_size, _pooled_axes(input))))


@register(F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices)
def max_pool_with_indices(input: Moments, kernel_size: Axes, *_: Any, **__: Any) -> tuple[Moments, None]:
    """Maximum of n independents; the indices have no moments."""
    return max_pool(input, kernel_size), None


def _bins(input: Moments, output_size: Any) -> list[list[int]]:
    """Bin lengths of adaptive pooling, for each axis."""
    size = aligned(input)[2][2:]
    wanted = [output_size] * len(size) if output_size is None or isinstance(output_size, int) else list(output_size)
    counts = [n if m is None else m for n, m in zip(size, wanted, strict=True)]
    return [[-(-(i + 1) * n // m) - i * n // m for i in range(m)] for n, m in zip(size, counts, strict=True)]


@register(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
def adaptive_avg_pool(input: Moments, output_size: Any) -> Moments:
    """Average over bins of n: ``m``, ``v`` times the mean of ``1 / n``."""
    mean, var = over_space(input)
    factor = math.prod([sum([1 / n for n in bins]) / len(bins) for bins in _bins(input, output_size)])
    return Moments(mean, var * factor)


@register(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
def adaptive_max_pool(input: Moments, output_size: Any, *_: Any, **__: Any) -> Moments:
    """Maximum over bins, of their mean size."""
    n = math.prod([sum(bins) / len(bins) for bins in _bins(input, output_size)])
    return Moments(*maxima.maximum_of(*over_space(input), round(n)))


@register(F.interpolate, F.upsample, F.upsample_nearest, F.upsample_bilinear)
def interpolate(input: Moments, *_: Any, **__: Any) -> Moments:
    """Both moments are kept: exact for nearest; the variance that linear interpolation loses is neglected."""
    return Moments(*over_space(input))


@register(F.pad)
def pad(input: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Moments:
    """The interior is not changed by padding of space; added channels are constants.

    Padding concerns axes on which the statistics vary, and the channel axis (the shortcut of a residual network).
    """
    mean, var, size = aligned(input)
    amounts = list(pad)
    channels = []
    for i in range(0, len(pad), 2):
        axis = len(size) - 1 - i // 2
        if any(pad[i : i + 2]) and ((axis == 1 and len(size) > 2) or mean.shape[axis] > 1 or var.shape[axis] > 1):
            channels.append(axis)
        else:
            amounts[i : i + 2] = [0, 0]
    if mode != "constant" or not channels:
        return input
    mean, var = full(mean, size, channels), full(var, size, channels)
    return Moments(F.pad(mean, amounts, value=value or 0.0), F.pad(var, amounts))


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
def batch_norm_module(input: Moments, module: nn.BatchNorm2d) -> Moments:
    """A BatchNorm that was left as it is hands on (bias, weight^2)."""
    return batch_norm(input, None, None, module.weight, module.bias)
