"""Views, joins and slices of moments; mostly functions ``(tensor, size, ...) -> tensor``.

The tensor stands for one of size ``size`` that is constant along every axis where the tensor has size 1. Each function
returns what the torch operation of its name would give on the full tensor, keeping constant axes at size 1. The batch
axis (axis 0, size 1 in the tensor) is never expanded: what would have to is a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .core import Moments

Sizes = Sequence[int]


def common_size(*tensors: Tensor) -> list[int]:
    """The size that these tensors broadcast to."""
    rank = max(t.dim() for t in tensors)
    sizes = [[1] * (rank - t.dim()) + list(t.shape) for t in tensors]
    return [max(entries) for entries in zip(*sizes, strict=True)]


def aligned(m: Moments) -> tuple[Tensor, Tensor, torch.Size]:
    """Mean and variance in the rank of the activation, and its size."""
    size = m.size if m.size is not None else torch.Size(common_size(m.mean, m.var))
    mean, var = (t.reshape([1] * (len(size) - t.dim()) + list(t.shape)) for t in (m.mean, m.var))
    return mean, var, size


def over_space(m: Moments) -> tuple[Tensor, Tensor]:
    """Moments of a position taken at random: the mean of the means, and the total variance."""
    mean, var, _ = aligned(m)
    axes = [axis for axis in range(2, mean.dim()) if mean.shape[axis] > 1]
    rest = [axis for axis in range(2, var.dim()) if var.shape[axis] > 1]
    if rest:
        var = var.mean(rest, keepdim=True)
    if axes:
        var = var + mean.var(axes, correction=0, keepdim=True)
        mean = mean.mean(axes, keepdim=True)
    return mean, var


def full(t: Tensor, size: Sizes, axes: Sequence[int]) -> Tensor:
    """The tensor with these axes at their full size."""
    target = [-1] * t.dim()
    for axis in axes:
        axis %= t.dim()
        if axis == 0 and t.shape[0] == 1 and size[0] != 1:
            raise ValueError(f"the batch axis of {tuple(size)} cannot be expanded: statistics are of one sample")
        target[axis] = size[axis]
    return t.expand(target)


def reshape(t: Tensor, size: Sizes, target: Sizes) -> Tensor:
    """View of the full size as ``target`` (one entry may be -1).

    Axes are matched in groups of equal product; a group that is constant stays constant, any other is expanded.

    >>> reshape(torch.ones(1, 6, 1, 1), (2, 6, 4, 4), (2, 3, 2, -1)).shape
    torch.Size([1, 3, 2, 1])
    """
    target = _resolve(size, target)
    shape, expanded = [], t
    for old, new in _groups(size, target):
        if all(t.shape[axis] == 1 for axis in old):
            shape += [1] * len(new)
            continue
        if 0 in old and len(old) > 1 and size[0] != 1 and t.shape[0] == 1:
            raise ValueError(
                f"reshape of {tuple(size)} to {tuple(target)} merges the batch axis with an axis on which "
                "the statistics vary; keep the batch axis apart"
            )
        expanded = full(expanded, size, [axis for axis in old if axis > 0 or t.shape[0] == size[0]])
        shape += [target[axis] for axis in new]
    return expanded.reshape(shape)


def _resolve(size: Sizes, target: Sizes) -> list[int]:
    known = math.prod([n for n in target if n != -1])
    resolved = [math.prod(size) // known if n == -1 else n for n in target]
    if math.prod(resolved) != math.prod(size):
        raise ValueError(f"cannot view {tuple(size)} as {tuple(target)}: {math.prod(size)} entries")
    return resolved


def _groups(size: Sizes, target: Sizes) -> Iterator[tuple[list[int], list[int]]]:
    """Shortest runs of axes with equal products; axes of size 1 left at the end form a last one."""
    i = j = 0
    while i < len(size) and j < len(target):
        old, new, product = [i], [j], [size[i], target[j]]
        i, j = i + 1, j + 1
        while product[0] != product[1]:
            if product[0] < product[1]:
                product[0] *= size[i]
                old.append(i)
                i += 1
            else:
                product[1] *= target[j]
                new.append(j)
                j += 1
        yield old, new
    yield list(range(i, len(size))), list(range(j, len(target)))


def flatten(t: Tensor, size: Sizes, start: int = 0, end: int = -1) -> Tensor:
    """Axes ``start`` to ``end`` merged into one."""
    if not size:
        return t.reshape(1)
    start, end = start % len(size), end % len(size)
    return reshape(t, size, [*size[:start], math.prod(size[start : end + 1]), *size[end + 1 :]])


def unflatten(t: Tensor, size: Sizes, dim: int, sizes: Sizes) -> Tensor:
    """Axis ``dim`` split into ``sizes``."""
    dim %= len(size)
    return reshape(t, size, [*size[:dim], *_resolve([size[dim]], sizes), *size[dim + 1 :]])


def squeeze(t: Tensor, size: Sizes, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without the axes (among ``dim``) whose full size is 1."""
    dims = range(len(size)) if dim is None else [dim] if isinstance(dim, int) else dim
    return t.squeeze(tuple(d % len(size) for d in dims if size[d] == 1))


def expand(t: Tensor, size: Sizes, target: Sizes) -> Tensor:
    """New leading axes; an axis that grows from 1 stays constant."""
    return t.reshape([1] * (len(target) - len(size)) + list(t.shape))


def repeat(t: Tensor, size: Sizes, times: Sizes) -> Tensor:
    """Tiled: constant axes stay constant."""
    t = expand(t, size, times)
    return t.repeat([1 if n == 1 else k for n, k in zip(t.shape, times, strict=True)])


def split(t: Tensor, size: Sizes, sections: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """Pieces of at most ``sections`` entries, or of the listed lengths."""
    n = size[dim]
    if isinstance(sections, int):
        sections = [min(sections, n - start) for start in range(0, n, sections)]
    if t.shape[dim] == 1 and n != 1:
        return [t] * len(sections)
    return list(torch.split_with_sizes(t, list(sections), dim))


def chunk(t: Tensor, size: Sizes, chunks: int, dim: int = 0) -> list[Tensor]:
    """At most ``chunks`` pieces of equal length, the last may be shorter."""
    return split(t, size, -(-size[dim] // chunks), dim)


def cat(tensors: Sequence[Tensor], sizes: Sequence[Sizes], dim: int = 0) -> Tensor:
    """Joined along ``dim``, which is expanded; the other axes broadcast."""
    dim %= tensors[0].dim()
    parts = [full(t, size, [dim]) for t, size in zip(tensors, sizes, strict=True)]
    common = [max(p.shape[axis] for p in parts) for axis in range(parts[0].dim())]
    return torch.cat([p.expand([*common[:dim], p.shape[dim], *common[dim + 1 :]]) for p in parts], dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joined along a new axis."""
    size = common_size(*tensors)
    return torch.stack([t.expand(size) for t in tensors], dim)


def getitem(t: Tensor, size: Sizes, index: Any) -> Tensor:
    """``t[index]`` for integers, slices, ``...``, ``None`` and tensors or lists of integers or booleans."""
    entries = _spelled_out(index, len(size))
    local: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is None:
            local.append(None)
            continue
        constant = t.shape[axis] == 1 and size[axis] != 1
        if isinstance(entry, int | slice):
            local.append((0 if isinstance(entry, int) else slice(None)) if constant else entry)
            axis += 1
            continue
        t = full(t, size, range(axis, axis + _span(entry)))
        local.append(entry)
        axis += _span(entry)
    return t[tuple(local)]


def _span(entry: Any) -> int:
    """How many axes an index consumes: a boolean mask one for each of its own, any other one."""
    is_mask = isinstance(entry, Tensor) and entry.dtype in (torch.bool, torch.uint8)
    return entry.dim() if is_mask else 1


def _spelled_out(index: Any, dim: int) -> list[Any]:
    entries = list(index) if isinstance(index, tuple) else [index]
    used = sum(_span(e) for e in entries if e is not None and e is not Ellipsis)
    rest = [slice(None)] * (dim - used)
    for place, entry in enumerate(entries):
        if entry is Ellipsis:
            return [*entries[:place], *rest, *entries[place + 1 :]]
    return entries + rest


def pixel_shuffle(t: Tensor, size: Sizes, factor: int) -> Tensor:
    """``(N, C r^2, H, W)`` to ``(N, C, H r, W r)``: varies over space with period r, so space is expanded."""
    return torch.pixel_shuffle(full(t, size, [-3, -2, -1]), factor)


def pixel_unshuffle(t: Tensor, size: Sizes, factor: int) -> Tensor:
    """``(N, C, H r, W r)`` to ``(N, C r^2, H, W)``: what is constant over space stays so."""
    if t.shape[-1] == t.shape[-2] == 1:
        return full(t, size, [-3]).repeat_interleave(factor * factor, -3)
    return torch.pixel_unshuffle(full(t, size, [-3, -2, -1]), factor)


def channel_shuffle(t: Tensor, groups: int) -> Tensor:
    """Channels ``(g, C/g)`` transposed."""
    if t.shape[1] == 1:
        return t
    grouped = t.reshape(len(t), groups, t.shape[1] // groups, *t.shape[2:])
    return grouped.transpose(1, 2).flatten(1, 2)
