"""The moment pass: replaying a recorded network on means and variances instead of activations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .core import Moments
from .lookup import ALIASES, declined, function_of, renamed
from .merged import Joined, Part, grouped, together
from .trace import Here, Ref, Slot, Step, Trace, leaves, rebuild

Visit = Callable[["Propagating", Moments], None]


class Propagating(nn.Module):
    """A layer that knows the moments of its own output."""

    wants_moments: bool
    """Whether its statistics are computed from its input's moments."""
    forgets_input: bool
    """Whether its output's moments do not depend on its input's (a normalization)."""

    def output_moments(self, m: Moments | None, size: Sequence[int]) -> Moments:
        """Moments handed on, for an output of this size."""
        raise NotImplementedError

    @staticmethod
    def together(layers: Sequence[Any], sizes: Sequence[Sequence[int]]) -> Joined | None:
        """Moments handed on by several layers that forget their inputs, end to end; None: by each on its own."""
        return None


@dataclass
class Node:
    """A step with its rule looked up: what the pass executes."""

    fn: Callable[..., Any] | None
    layer: Propagating | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: int
    outs: tuple[int, ...]
    sizes: tuple[torch.Size, ...]
    single: bool
    step: Step

    def __getstate__(self) -> dict[str, Any]:
        """Without the rule: it is looked up again, and may be a function that cannot be pickled."""
        return {**vars(self), "fn": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        """With the rule: a compiled network must not see it change."""
        made = object.__new__(Node)
        memo[id(self)] = made
        vars(made).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return made


@dataclass
class Plan:
    """What to run for the statistics of some layers: nodes by the number of their trace, and each layer's places.

    ``groups`` are the same nodes, those together that can be run as one.
    """

    layers: list[nn.Module]
    places: list[list[tuple[int, int]]]
    nodes: list[tuple[int, list[Node]]]
    groups: list[tuple[int, list[list[Node]]]]


class Program:
    """Steps of a network, ready to be replayed on moments.

    Only the steps that some layer's statistics depend on are ever run: a normalization hands on the moments of its own
    output, so what stands before it does not matter to what stands behind.

    Arguments:
        traces: recorded runs (training mode, evaluation mode); a layer's places are those of the first that has it.
        inputs: mean and variance of each network input, as references to buffers.
    """

    def __init__(self, traces: Sequence[Trace], inputs: Sequence[tuple[Ref, Ref]]) -> None:
        self.traces = list(traces)
        self.inputs = list(inputs)
        self.sites: dict[nn.Module, list[tuple[int, int]]] = {}
        for number, trace in enumerate(self.traces):
            found: dict[nn.Module, list[tuple[int, int]]] = {}
            for step in trace.steps:
                if isinstance(step.func, Propagating):
                    found.setdefault(step.func, []).append((number, step.inputs()[0]))
            for layer, sites in found.items():
                self.sites.setdefault(layer, sites)

    def plan(self, layers: Iterable[nn.Module]) -> Plan:
        """What the statistics of these layers need, in order."""
        layers = [layer for layer in layers if layer in self.sites]
        nodes = [(number, [_node(step) for step in steps]) for number, steps in self._needed(layers)]
        groups = [(number, grouped(found)) for number, found in nodes]
        return Plan(layers, [self.sites[layer] for layer in layers], nodes, groups)

    def steps(self, layers: Iterable[nn.Module]) -> list[Step]:
        """All steps that the statistics of these layers need."""
        return [step for _, steps in self._needed(layers) for step in steps]

    def _needed(self, layers: Iterable[nn.Module]) -> list[tuple[int, list[Step]]]:
        wanted: dict[int, set[int]] = {}
        for layer in layers:
            for number, slot in self.sites[layer]:
                wanted.setdefault(number, set()).add(slot)
        needed = []
        for number, slots in sorted(wanted.items()):
            steps = []
            for step in reversed(self.traces[number].steps):
                if slots.intersection(step.outs):
                    steps.append(step)
                    closed = step.measured is not None or (
                        isinstance(step.func, Propagating) and step.func.forgets_input
                    )
                    slots.update(() if closed else step.inputs())
            needed.append((number, steps[::-1]))
        return needed

    def run(self, plan: Plan, visit: Visit | None = None) -> list[tuple[Tensor, Tensor]]:
        """Input mean and variance per channel of each planned layer; ``visit`` sees a layer before its output."""
        values: list[dict[int, Any]] = []
        for trace in self.traces:
            known: dict[int, Any] = {}
            for slot, (mean, var) in zip(trace.inputs, self.inputs, strict=True):
                size = trace.sizes[slot]
                known[slot] = Moments(per_channel(mean.get(), size), per_channel(var.get(), size), size)
            values.append(known)
        if visit is not None or torch.compiler.is_compiling():  # a compiler fuses as it sees fit
            for number, nodes in plan.nodes:
                for node in nodes:
                    _replay(node, values[number], visit)
        else:
            for number, groups in plan.groups:
                for group in groups:
                    _replay_group(group, values[number])
        return [
            mixture([as_vectors(values[number][slot], layer) for number, slot in places])
            for layer, places in zip(plan.layers, plan.places, strict=True)
        ]


def per_channel(value: Tensor, size: Sequence[int]) -> Tensor:
    """A scalar or per-channel statistic of a network input, in the rank of the input (channels on axis 1)."""
    shape = [1] * len(size)
    if value.numel() > 1:
        shape[1] = value.numel()
    return value.reshape(shape)


def as_vectors(m: Moments, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean and variance per input channel of a layer, averaged over space where they vary."""
    assert m.size is not None
    axis = channel_axis(layer, len(m.size))
    if isinstance(m, Part) and len(m.vectors[0]) == m.size[axis] == m.joined.shapes[m.place][axis]:
        return m.vectors
    rest = [i for i in range(m.mean.dim()) if i != axis]
    if all(t.size(i) == 1 for t in (m.mean, m.var) for i in rest):
        mean, var = m.mean.flatten(), m.var.flatten()
    else:
        average = m.mean.mean(rest, keepdim=True)
        mean, var = average.flatten(), (m.var + (m.mean - average) ** 2).mean(rest)
    return mean.expand(m.size[axis]), var.expand(m.size[axis])


def channel_axis(layer: nn.Module, dim: int) -> int:
    """Linear layers have their channels last, all others on axis 1."""
    return dim - 1 if isinstance(layer, nn.Linear) else 1


def mixture(sites: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Moments of the mixture when a layer is used in several places."""
    if len(sites) == 1:
        return sites[0]
    mean = torch.stack([m for m, _ in sites]).mean(0)
    var = torch.stack([v + (m - mean) ** 2 for m, v in sites]).mean(0)
    return mean, var


def _replay(node: Node, values: dict[int, Any], visit: Visit | None) -> None:
    if node.layer is not None:
        m = values.get(node.source)
        if visit is not None and m is not None:
            visit(node.layer, m)
        values[node.outs[0]] = node.layer.output_moments(m, node.sizes[0]).sized(node.sizes[0])
        return
    args = [_live(arg, values) for arg in node.args]
    kwargs = {key: _live(arg, values) for key, arg in node.kwargs.items()}
    if any(isinstance(arg, Moments) and arg.mean.is_complex() for arg in leaves((args, kwargs))):
        raise declined(node.step, ValueError("moments of complex numbers have no rules"))
    if node.fn is None:
        node.fn = _held_by(node.step) if node.step.held else _function(node.step)
    try:
        out = node.fn(*args, **kwargs)
        pairs = list(zip(node.outs, [out] if node.single else out, strict=True))
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a rule does not expect
        raise declined(node.step, error) from error
    for (slot, value), size in zip(pairs, node.sizes, strict=True):
        _store(values, slot, size, value)


def _replay_group(nodes: list[Node], values: dict[int, Any]) -> None:
    first, found = nodes[0], None
    if len(nodes) > 1 and first.layer is not None:
        joined = first.layer.together([node.layer for node in nodes], [node.sizes[0] for node in nodes])
        found = None if joined is None else joined.parts()
    elif len(nodes) > 1:
        moments = [values[node.args[0].id] for node in nodes]
        rule = first.fn or _function(first.step)
        try:
            found = together(rule, moments, first.args[1:], first.kwargs)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise declined(first.step, error) from error
    if found is None:
        for node in nodes:
            _replay(node, values, None)
        return
    for node, value in zip(nodes, found, strict=True):
        _store(values, node.outs[0], node.sizes[0], value)


def _store(values: dict[int, Any], slot: int, size: torch.Size, value: Any) -> None:
    values[slot] = value.sized(size) if isinstance(value, Moments) else value


def _live(arg: Any, values: dict[int, Any]) -> Any:
    if isinstance(arg, Slot):
        value = values[arg.id]
        return value.cut() if isinstance(value, Part) else value
    if isinstance(arg, (Ref, Here)):
        return arg.get()
    if isinstance(arg, (tuple, list, dict, slice)):
        return rebuild(arg, lambda leaf: _live(leaf, values))
    return arg


def _node(step: Step) -> Node:
    layer = step.func if isinstance(step.func, Propagating) else None
    source = step.inputs()[0] if layer is not None else -1
    fn, args, kwargs = _function(step), step.args, step.kwargs
    if step.held:
        fn, args, kwargs = _held_by(step), step.held, {}
    elif step.active and layer is None and not ALIASES.keys().isdisjoint(kwargs):
        kwargs = renamed(fn, kwargs)
    return Node(fn, layer, args, kwargs, source, step.outs, step.sizes, step.single, step)


def _held_by(step: Step) -> Callable[..., Any]:
    """Gives back moments that were measured once, as the operation returned its output: alone or among others."""
    return _held_alone if step.single else _held


def _held(*references: Tensor) -> list[Moments]:
    """Mean and variance in turn."""
    return [Moments(mean, var) for mean, var in zip(references[::2], references[1::2], strict=True)]


def _held_alone(mean: Tensor, var: Tensor) -> Moments:
    return Moments(mean, var)


def _function(step: Step) -> Callable[..., Any]:
    return step.func if step.held or isinstance(step.func, Propagating) else function_of(step)
