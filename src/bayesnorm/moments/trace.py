"""What a recorded run of a network is: steps with slots, references and constants as their arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from . import core


@dataclass(frozen=True)
class Slot:
    """A value that a step produced (or an input of the network)."""

    id: int


@dataclass(frozen=True)
class Ref:
    """A parameter or buffer, looked up in its module each time the pass runs."""

    module: nn.Module
    name: str

    @property
    def value(self) -> Tensor:
        """The tensor itself."""
        value: Tensor = getattr(self.module, self.name)
        return value

    def get(self) -> Tensor:
        """The tensor as it is now, half precision widened: statistics are kept in float32 or better."""
        return core.wide(self.value)


@dataclass(frozen=True)
class Here:
    """The device of a network, in place of the meta device that a shape-only run saw."""

    model: nn.Module

    def get(self) -> torch.device:
        """The device as it is now."""
        return next(iter(self.model.parameters())).device


@dataclass(frozen=True)
class Address:
    """Where to find one of torch's functions that cannot be pickled by its own name."""

    module: str
    name: str

    def find(self) -> Callable[..., Any]:
        """The function itself."""
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return function


def address_of(func: Any) -> Any:
    """The address of a function that torch made inside another; anything else as it is."""
    if "<locals>" in getattr(func, "__qualname__", ""):
        for module in (torch.nn.functional, torch):
            for name, value in vars(module).items():
                if value is func:
                    return Address(module.__name__, name)
    return func


@dataclass(frozen=True)
class Attribute:
    """Reading an attribute such as ``x.T``, as a function."""

    name: str

    def __call__(self, x: Tensor) -> Any:
        """The attribute of ``x``."""
        return getattr(x, self.name)


@dataclass(frozen=True)
class Overwritten:
    """Stands for what an operation wrote into memory that another activation has too: its base, or a view of it."""

    name: str


@dataclass
class Step:
    """One operation: its function or module, arguments with slots and references in them, and the slots it filled.

    ``candidate`` are moments measured on an example; ``measured`` are those in use for want of a rule, and ``held`` the
    buffers that keep them.
    """

    where: str
    caller: nn.Module
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]
    sizes: tuple[torch.Size, ...]
    single: bool
    active: bool
    candidate: tuple[core.Moments, ...] | None = None
    measured: tuple[core.Moments, ...] | None = None
    held: tuple[Ref, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "func": address_of(self.func)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        func = state["func"]
        vars(self).update(state, func=func.find() if isinstance(func, Address) else func)

    @property
    def operation(self) -> str:
        """Name of the operation, for messages."""
        if self.func is unseen:
            return "an operation that torch does not see (numpy, an autograd.Function, ...)"
        if isinstance(self.func, Overwritten):
            return repr(self.func.name)
        name = type(self.func).__name__ if isinstance(self.func, nn.Module) else getattr(self.func, "__name__", None)
        return repr(name or str(self.func))

    @property
    def place(self) -> str:
        """Module in whose forward it ran, for messages."""
        return repr(self.where) if self.where else "the network's own forward"

    def inputs(self) -> list[int]:
        """Slots among the arguments."""
        return [leaf.id for leaf in leaves((self.args, self.kwargs)) if isinstance(leaf, Slot)]


@dataclass
class Trace:
    """All steps of one run of a network, in order."""

    steps: list[Step] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    sizes: dict[int, torch.Size] = field(default_factory=dict)
    outputs: set[int] = field(default_factory=set)

    @cached_property
    def producers(self) -> dict[int, Step]:
        """Slot -> the step that filled it."""
        return {out: step for step in self.steps for out in step.outs}

    @cached_property
    def uses(self) -> dict[int, list[Step]]:
        """Slot -> the steps that read it."""
        uses: dict[int, list[Step]] = {}
        for step in self.steps:
            for slot in step.inputs():
                uses.setdefault(slot, []).append(step)
        return uses


def leaves(value: Any) -> Iterator[Any]:
    """All leaves of nested tuples, lists, dicts and slices."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, slice):
        yield from leaves((value.start, value.stop, value.step))
    else:
        yield value


def rebuild(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same nesting with each leaf replaced."""
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, tuple):
        return tuple([rebuild(item, leaf) for item in value])
    if isinstance(value, list):
        return [rebuild(item, leaf) for item in value]
    if isinstance(value, dict):
        return {key: rebuild(item, leaf) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(rebuild(value.start, leaf), rebuild(value.stop, leaf), rebuild(value.step, leaf))
    return leaf(value)


def unseen() -> None:
    """Stands for an operation outside torch's function override (an autograd.Function, numpy, ...)."""


def rule_of(func: Any) -> core.Rule | None:
    """The rule registered for a function, attribute or module, if any."""
    if isinstance(func, Attribute):
        return core.find(func.name)
    return core.find(type(func) if isinstance(func, nn.Module) else func)
