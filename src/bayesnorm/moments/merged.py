"""Equal operations of the moment pass that do not wait for each other, run as one on the channels of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from .core import Moments, is_elementwise
from .trace import Slot, leaves


class Operation(Protocol):
    """What the grouping has to know of a node."""

    fn: Callable[..., Any] | None
    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: int
    outs: tuple[int, ...]


NodeT = TypeVar("NodeT", bound=Operation)


def grouped(nodes: Sequence[NodeT]) -> list[list[NodeT]]:
    """All nodes, in an order in which none comes before what it reads; those of a group can be run as one."""
    depth: dict[int, int] = {}
    groups: dict[tuple[int, Any], list[NodeT]] = {}
    for node in nodes:
        level = 1 + max((depth.get(slot, 0) for slot in _reads(node)), default=0)
        depth.update(dict.fromkeys(node.outs, level))
        groups.setdefault((level, _kind(node)), []).append(node)
    return [group for _, group in sorted(groups.items(), key=lambda item: item[0][0])]


class Joined:
    """Moments of several activations, end to end.

    Arguments:
        mean: ``(numbers of all,)``.
        var: ``(numbers of all,)``.
        shapes: those of the moments of each.
    """

    def __init__(self, mean: Tensor, var: Tensor, shapes: Sequence[Sequence[int]]) -> None:
        self.mean, self.var, self.shapes = mean, var, shapes

    @cached_property
    def vectors(self) -> list[tuple[Tensor, Tensor]]:
        """Mean and variance of each, flat."""
        sizes = [math.prod(shape) for shape in self.shapes]
        return list(zip(self.mean.split(sizes), self.var.split(sizes), strict=True))

    def parts(self) -> list[Moments]:
        """The moments of each."""
        return [Part(self, place) for place in range(len(self.shapes))]


class Part(Moments):
    """Moments of one of several activations; cut out when they are read, which the next group of them need not do."""

    def __init__(self, joined: Joined, place: int, size: torch.Size | None = None) -> None:
        for name, value in (("joined", joined), ("place", place), ("size", size)):
            object.__setattr__(self, name, value)

    joined: Joined
    place: int

    @property
    def vectors(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, flat."""
        return self.joined.vectors[self.place]

    @property
    def mean(self) -> Tensor:
        """In the rank of the activation."""
        return self.vectors[0].view(*self.joined.shapes[self.place])

    @property
    def var(self) -> Tensor:
        """In the rank of the activation."""
        return self.vectors[1].view(*self.joined.shapes[self.place])

    def sized(self, size: torch.Size) -> Moments:
        """The same moments for an activation of this size."""
        return Part(self.joined, self.place, size)

    def cut(self) -> Moments:
        """The same moments on their own, as rules want them: one object, however often an operation reads them."""
        return self._own

    @cached_property
    def _own(self) -> Moments:
        return Moments(self.mean, self.var, self.size)


def join(moments: Sequence[Moments]) -> Joined | None:
    """These moments end to end; None where dtype or device differ."""
    first = moments[0]
    if isinstance(first, Part):
        whole = first.joined
        if len(whole.shapes) == len(moments) and all(
            isinstance(m, Part) and m.joined is whole and m.place == place for place, m in enumerate(moments)
        ):
            return whole
    pairs = [(m.mean, m.var) for m in moments]
    if len({(t.dtype, t.device) for pair in pairs for t in pair}) > 1:
        return None
    pairs = [pair if pair[0].shape == pair[1].shape else torch.broadcast_tensors(*pair) for pair in pairs]
    mean, var = (torch.cat([pair[i].reshape(-1) for pair in pairs]) for i in (0, 1))
    return Joined(mean, var, [pair[0].shape for pair in pairs])


def together(fn: Callable[..., Any], moments: Sequence[Moments], args: Any, kwargs: Any) -> list[Moments] | None:
    """An elementwise rule on all of these moments; None where they cannot be laid end to end."""
    joined = join(moments)
    if joined is None:
        return None
    out = fn(Moments(joined.mean, joined.var), *args, **kwargs)
    return Joined(out.mean, out.var, joined.shapes).parts()


def _reads(node: Operation) -> list[int]:
    if node.layer is not None:
        return [] if node.layer.forgets_input else [node.source]
    return [leaf.id for leaf in leaves((node.args, node.kwargs)) if isinstance(leaf, Slot)]


def _kind(node: Operation) -> Any:
    """Equal for nodes that can be run as one."""
    if node.layer is not None and node.layer.forgets_input:
        return type(node.layer).together
    if node.layer is None and node.fn is not None and is_elementwise(node.fn) and node.args:
        options = (*node.args[1:], *node.kwargs.values())
        if isinstance(node.args[0], Slot) and all(isinstance(v, (int, float, str, type(None))) for v in options):
            return (node.fn, node.args[1:], tuple(sorted(node.kwargs.items())))
    return id(node)
