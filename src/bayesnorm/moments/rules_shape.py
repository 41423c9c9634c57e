"""Rules of views, joins, slices and casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import shape
from .core import Moments, register
from .rules_arithmetic import as_moments
from .shape import aligned

Operand = Moments | Tensor

LENDING: frozenset[Any] = frozenset(
    {Tensor.to, Tensor.type, Tensor.type_as, Tensor.expand_as, Tensor.view_as, Tensor.reshape_as}
)
"""Methods that take only size or dtype from their arguments: of a constant they make a constant."""


def _each(input: Moments, f: Callable[..., Tensor], *args: Any) -> Moments:
    """``f(tensor, size, ...)`` of mean and variance."""
    mean, var, size = aligned(input)
    return Moments(f(mean, size, *args), f(var, size, *args))


def _direct(input: Moments, f: Callable[[Tensor], Tensor]) -> Moments:
    mean, var, _ = aligned(input)
    return Moments(f(mean), f(var))


def _pieces(input: Moments, f: Callable[..., list[Tensor]], *args: Any) -> list[Moments]:
    mean, var, size = aligned(input)
    return [Moments(m, v) for m, v in zip(f(mean, size, *args), f(var, size, *args), strict=True)]


def _listed(args: tuple[Any, ...]) -> Any:
    """Sizes given one by one, or as one tuple."""
    return args[0] if len(args) == 1 and not isinstance(args[0], int) else args


@register("view", "reshape", torch.reshape)
def reshape(input: Moments, *size: Any, **named: Any) -> Moments:
    """Another size, the same entries."""
    target = _listed(size) if size else named.get("shape", named.get("size"))
    return input if isinstance(target, torch.dtype) else _each(input, shape.reshape, target)


@register("view_as", "reshape_as")
def reshape_as(input: Operand, other: Operand) -> Operand:
    """The size of another tensor."""
    size = _size(other)
    return _each(input, shape.reshape, size) if isinstance(input, Moments) else input.reshape(size)


def _size(x: Operand) -> torch.Size:
    return aligned(x)[2] if isinstance(x, Moments) else x.shape


@register(torch.flatten, "flatten")
def flatten(input: Moments, start_dim: int = 0, end_dim: int = -1) -> Moments:
    """Axes merged: statistics repeat per position."""
    return _each(input, shape.flatten, start_dim, end_dim)


@register(torch.unflatten, "unflatten")
def unflatten(input: Moments, dim: int, sizes: Sequence[int]) -> Moments:
    """One axis split."""
    return _each(input, shape.unflatten, dim, sizes)


@register(torch.squeeze, "squeeze", "squeeze_")
def squeeze(input: Moments, dim: Any = None) -> Moments:
    """Without axes of size 1."""
    return _each(input, shape.squeeze, dim)


@register(torch.unsqueeze, "unsqueeze", "unsqueeze_")
def unsqueeze(input: Moments, dim: int) -> Moments:
    """A new axis."""
    return _direct(input, lambda t: t.unsqueeze(dim))


@register(torch.permute, "permute")
def permute(input: Moments, *dims: Any, **named: Any) -> Moments:
    """Axes in another order."""
    order = _listed(dims) if dims else named["dims"]
    return _direct(input, lambda t: t.permute(tuple(order)))


@register(torch.transpose, torch.swapaxes, torch.swapdims, "transpose", "swapaxes", "swapdims")
def transpose(input: Moments, dim0: int, dim1: int) -> Moments:
    """Two axes swapped."""
    return _direct(input, lambda t: t.transpose(dim0, dim1))


@register(torch.t, "t", "T", "mT")
def matrix_transpose(input: Moments) -> Moments:
    """The last two axes swapped."""
    return _direct(input, lambda t: t.transpose(-1, -2) if t.dim() > 1 else t)


@register(torch.movedim, torch.moveaxis, "movedim", "moveaxis")
def movedim(input: Moments, source: Any, destination: Any) -> Moments:
    """Axes moved."""
    return _direct(input, lambda t: t.movedim(source, destination))


@register("expand")
def expand(input: Moments, *sizes: Any, **named: Any) -> Moments:
    """Broadcast."""
    return _each(input, shape.expand, _listed(sizes) if sizes else named["size"])


@register("expand_as")
def expand_as(input: Operand, other: Operand) -> Operand:
    """Broadcast to another tensor."""
    size = _size(other)
    return _each(input, shape.expand, size) if isinstance(input, Moments) else input.expand(size)


@register("repeat", torch.tile, "tile")
def repeat(input: Moments, *repeats: Any) -> Moments:
    """Tiled."""
    times = list(_listed(repeats))
    return _each(input, shape.repeat, [1] * (len(aligned(input)[2]) - len(times)) + times)


@register(torch.roll, "roll")
def roll(input: Moments, shifts: Any, dims: Any = None) -> Moments:
    """Shifted along axes, wrapping around."""
    if dims is None:
        raise ValueError("roll without dims mixes the samples of a batch; pass dims=")
    return _direct(input, lambda t: t.roll(shifts, dims))


@register(torch.flip, "flip")
def flip(input: Moments, *dims: Any, **named: Any) -> Moments:
    """Reversed along axes."""
    axes = _listed(dims) if dims else named["dims"]
    return _direct(input, lambda t: t.flip(tuple(axes)))


@register("__getitem__")
def getitem(input: Moments, index: Any) -> Moments:
    """Slices and elements."""
    return _each(input, shape.getitem, index)


@register(torch.select, "select")
def select(input: Moments, dim: int, index: int) -> Moments:
    """One element of an axis."""
    return getitem(input, _along(input, dim, index))


@register(torch.narrow, "narrow")
def narrow(input: Moments, dim: int, start: int, length: int) -> Moments:
    """A range of an axis; a negative start counts from its end."""
    start = start + aligned(input)[2][dim] if start < 0 else start
    return getitem(input, _along(input, dim, slice(start, start + length)))


@register(torch.index_select, "index_select")
def index_select(input: Moments, dim: int, index: Tensor) -> Moments:
    """Listed elements of an axis."""
    return getitem(input, _along(input, dim, index))


def _along(input: Moments, dim: int, index: Any) -> tuple[Any, ...]:
    rank = len(aligned(input)[2])
    return (slice(None),) * (dim % rank) + (index,)


@register(torch.split, "split", "split_with_sizes", torch.split_with_sizes)
def split(input: Moments, split_size: Any = None, dim: int = 0, **named: Any) -> list[Moments]:
    """Pieces of given lengths."""
    sections = split_size if split_size is not None else next(iter(named.values()))
    return _pieces(input, shape.split, sections, dim)


@register(torch.chunk, "chunk")
def chunk(input: Moments, chunks: int, dim: int = 0) -> list[Moments]:
    """A number of pieces."""
    return _pieces(input, shape.chunk, chunks, dim)


@register(torch.unbind, "unbind")
def unbind(input: Moments, dim: int = 0) -> list[Moments]:
    """All elements of an axis."""
    return [select(input, dim, index) for index in range(aligned(input)[2][dim])]


def _joined(tensors: Sequence[Any]) -> tuple[list[Tensor], list[Tensor], list[torch.Size]]:
    """Mean, variance and size of what is joined; constants take part."""
    like = next(t for t in tensors if isinstance(t, Moments))
    sizes = [aligned(t)[2] if isinstance(t, Moments) else t.shape for t in tensors]
    parts = [aligned(as_moments(t, like).sized(size)) for t, size in zip(tensors, sizes, strict=True)]
    return [p[0] for p in parts], [p[1] for p in parts], sizes


@register(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Any], dim: int = 0, **named: int) -> Moments:
    """Joined along an axis."""
    means, variances, sizes = _joined(tensors)
    dim = named.get("axis", dim)
    return Moments(shape.cat(means, sizes, dim), shape.cat(variances, sizes, dim))


@register(torch.stack)
def stack(tensors: Sequence[Any], dim: int = 0) -> Moments:
    """Joined along a new axis."""
    means, variances, _ = _joined(tensors)
    return Moments(shape.stack(means, dim), shape.stack(variances, dim))


@register(F.pixel_shuffle)
def pixel_shuffle(input: Moments, upscale_factor: int) -> Moments:
    """Channels to space."""
    return _each(input, shape.pixel_shuffle, upscale_factor)


@register(F.pixel_unshuffle)
def pixel_unshuffle(input: Moments, downscale_factor: int) -> Moments:
    """Space to channels."""
    return _each(input, shape.pixel_unshuffle, downscale_factor)


@register(F.channel_shuffle)
def channel_shuffle(input: Moments, groups: int) -> Moments:
    """Channels of the groups interleaved."""
    return _direct(input, lambda t: shape.channel_shuffle(t, groups))


@register("contiguous", "clone", torch.clone, "half", "bfloat16", "cpu", "cuda", "requires_grad_")
@register(torch.positive, "positive")
def identity(input: Moments, *_: Any, **__: Any) -> Moments:
    """Unchanged. Statistics stay where they are and in their precision, whatever an activation is cast to."""
    return input


@register("to", "type", "type_as")
def to(input: Operand, *args: Any, **kwargs: Any) -> Operand:
    """Double precision if that is asked for, by dtype or by another tensor; else unchanged, as :func:`identity`."""
    args = tuple(map(_as_tensor, args))
    kwargs = {name: _as_tensor(value) for name, value in kwargs.items()}
    if not isinstance(input, Moments):
        return input.to(*args, **kwargs)
    wanted = [getattr(value, "dtype", value) for value in (*args, *kwargs.values())]
    return double(input) if torch.float64 in wanted else input


def _as_tensor(value: Any) -> Any:
    return value.mean if isinstance(value, Moments) else value


@register("float")
def float_(input: Moments, **_: Any) -> Moments:
    """Single precision."""
    return replace(input, mean=input.mean.float(), var=input.var.float())


@register("double")
def double(input: Moments, **_: Any) -> Moments:
    """Double precision."""
    return replace(input, mean=input.mean.double(), var=input.var.double())


@register(torch.detach, "detach", "detach_")
def detach(input: Moments) -> Moments:
    """The same statistics, without gradient."""
    return _direct(input, lambda t: t.detach())
