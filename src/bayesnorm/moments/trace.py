"""Recording what a network computes: one real or shape-only run, every torch call a step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import core, rules


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
        value = self.value
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


@dataclass(frozen=True)
class Here:
    """The device of a network, in place of the meta device that a shape-only run saw."""

    model: nn.Module

    def get(self) -> torch.device:
        """The device as it is now."""
        return next(iter(self.model.parameters())).device


@dataclass(frozen=True)
class Attribute:
    """Reading an attribute such as ``x.T``, as a function."""

    name: str

    def __call__(self, x: Tensor) -> Any:
        """The attribute of ``x``."""
        return getattr(x, self.name)


@dataclass
class Step:
    """One operation: its function or module, arguments with slots and references in them, and the slots it filled."""

    where: str
    caller: nn.Module
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]
    sizes: tuple[torch.Size, ...]
    single: bool
    active: bool
    measured: tuple[core.Moments, ...] | None = None
    held: tuple[Ref, ...] = ()

    @property
    def operation(self) -> str:
        """Name of the operation, for messages."""
        if self.func is _unseen:
            return "an operation that torch does not see (numpy, an autograd.Function, ...)"
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


class _Recorder(TorchFunctionMode):
    """Writes each torch call of the run into a :class:`Trace`."""

    def __init__(self, model: nn.Module, measure: bool) -> None:
        super().__init__()
        self.trace = Trace()
        self.model = model
        self.measure = measure
        self.paused = 0
        self.path: list[tuple[str, nn.Module]] = [("", model)]
        self._slots: dict[int, Slot] = {}
        self._refs: dict[int, Ref] = {}
        self._active: set[int] = set()
        self._alive: list[Any] = []
        self._attributes = {
            id(value) for m in model.modules() for value in vars(m).values() if isinstance(value, Tensor)
        }

    def refer(self, tensor: Tensor, module: nn.Module, name: str) -> None:
        self._refs[id(tensor)] = Ref(module, name)
        self._alive.append(tensor)

    def new_slot(self, tensor: Tensor, active: bool) -> int:
        slot = Slot(len(self.trace.sizes))
        self.trace.sizes[slot.id] = tensor.size()
        self._slots[id(tensor)] = slot
        self._alive.append(tensor)
        if active:
            self._active.add(slot.id)
        return slot.id

    def slot_of(self, tensor: Tensor) -> Slot | None:
        return self._slots.get(id(tensor))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        tensors = [leaf for leaf in leaves(out) if isinstance(leaf, Tensor)]
        if tensors:
            if getattr(func, "__name__", "") == "__get__":
                func = Attribute(func.__self__.__name__)
            self.record(func, args, kwargs, out, tensors)
        return out

    def record(self, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Tensor]) -> None:
        """Append a step, unless it only hands an argument on."""
        coded_args, coded_kwargs = rebuild((tuple(args), dict(kwargs)), self._code)
        slots = [leaf.id for leaf in leaves((coded_args, coded_kwargs)) if isinstance(leaf, Slot)]
        active = func in rules.RANDOM or any(slot in self._active for slot in slots)
        single = isinstance(out, Tensor)
        measured = None
        if active and self.measure and _rule(func) is None:
            measured = tuple(_measure(t) for t in tensors)
        outs = tuple(self.new_slot(t, active) for t in tensors)
        sizes = tuple(t.size() for t in tensors)
        step = Step(*self.path[-1], func, coded_args, coded_kwargs, outs, sizes, single, active, measured)
        self.trace.steps.append(step)

    def _code(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device) and leaf.type == "meta":
            return Here(self.model)
        if not isinstance(leaf, Tensor):
            return leaf
        found = self._slots.get(id(leaf)) or self._refs.get(id(leaf))
        if found is not None:
            return found
        if id(leaf) in self._attributes:
            return leaf
        # Nothing recorded made this tensor: an operation that torch's function override does not see.
        slot = Slot(self.new_slot(leaf, active=True))
        measured = (_measure(leaf),) if self.measure else None
        step = Step(*self.path[-1], _unseen, (), {}, (slot.id,), (leaf.size(),), True, True, measured)
        self.trace.steps.append(step)
        return slot


def _unseen() -> None:
    """Stands for an operation outside torch's function override (an autograd.Function, numpy, ...)."""


def _rule(func: Any) -> core.Rule | None:
    if isinstance(func, Attribute):
        return core.find(func.name)
    return core.find(type(func) if isinstance(func, nn.Module) else func)


def _measure(x: Tensor) -> core.Moments:
    """Mean and variance over batch and space of a measured activation; the channel axis is 1."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(x, dim=axes, correction=0, keepdim=True)
    return core.Moments(mean, var)


def record(
    model: nn.Module,
    inputs: tuple[Any, ...],
    *,
    leaf: Callable[[nn.Module], Callable[..., Any] | None],
    measure: bool,
) -> Trace:
    """Run the network once on ``inputs`` in its present mode and record every step; nothing of the network changes.

    Arguments:
        model: the network. Its buffers are replaced by copies during the run.
        inputs: arguments of the call; tensors on the meta device make it a shape-only run.
        leaf: for a module that is to be one step, a side-effect-free function that computes its output; else None.
        measure: measure the moments of operations that have no rule (needs real inputs).
    """
    device = next((t.device for t in leaves(inputs) if isinstance(t, Tensor)), torch.device("cpu"))
    shape_only = device.type == "meta"
    recorder = _Recorder(model, measure)
    tensors: dict[str, Tensor] = {}
    copies: dict[int, Tensor] = {}
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            if id(tensor) not in copies:
                copies[id(tensor)] = torch.empty_like(tensor, device="meta") if shape_only else tensor.detach().clone()
                recorder.refer(copies[id(tensor)], module, name)
            tensors[f"{path}.{name}" if path else name] = copies[id(tensor)]
    for tensor in leaves(inputs):
        if isinstance(tensor, Tensor):
            recorder.trace.inputs.append(recorder.new_slot(tensor, active=True))
    devices = [device.index] if device.type == "cuda" else []
    with (
        _as_it_was(model, recorder),
        torch.random.fork_rng(devices=devices),
        torch.no_grad(),
        _leaves(model, recorder, leaf),
        torch.device(device),
        recorder,
    ):
        # Each module once under one name: an alias that is swapped twice would be restored to the copy.
        out = torch.func.functional_call(model, tensors, inputs, tie_weights=False)
    for tensor in _tensors_of(out):
        slot = recorder.slot_of(tensor)
        if slot is not None:
            recorder.trace.outputs.add(slot.id)
    return recorder.trace


@contextmanager
def _as_it_was(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Attributes that the forward writes (caches, counters) get their old values, Python's generator its state."""
    before = {module: dict(vars(module)) for module in model.modules()}
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
        for module, attributes in before.items():
            for tensor in vars(module).values():
                slot = recorder.slot_of(tensor) if isinstance(tensor, Tensor) else None
                if slot is not None:
                    recorder.trace.outputs.add(slot.id)
            module.__dict__.clear()
            module.__dict__.update(attributes)


def _tensors_of(out: Any) -> list[Tensor]:
    if hasattr(out, "__dict__") and not isinstance(out, (Tensor, tuple, list, Mapping)):
        out = vars(out)
    return [leaf for leaf in leaves(out) if isinstance(leaf, Tensor)]


@contextmanager
def _leaves(
    model: nn.Module, recorder: _Recorder, leaf: Callable[[nn.Module], Callable[..., Any] | None]
) -> Iterator[None]:
    """During the run, leaf modules record themselves as one step and every module keeps the path up to date."""
    handles = []
    patched: list[nn.Module] = []

    def patch(module: nn.Module, compute: Callable[..., Any]) -> None:
        def forward(*args: Any, **kwargs: Any) -> Any:
            recorder.paused += 1
            try:
                out = compute(*args, **kwargs)
            finally:
                recorder.paused -= 1
            tensors = [t for t in leaves(out) if isinstance(t, Tensor)]
            recorder.record(module, args, kwargs, out, tensors)
            return out

        module.__dict__["forward"] = forward
        patched.append(module)

    try:
        for name, module in model.named_modules():
            compute = leaf(module)
            if compute is not None:
                patch(module, compute)
            handles.append(module.register_forward_pre_hook(partial(_push, recorder.path, name), prepend=True))
            handles.append(module.register_forward_hook(partial(_pop, recorder.path), always_call=True))
        yield
    finally:
        for module in patched:
            del module.__dict__["forward"]
        for handle in handles:
            handle.remove()


def _push(path: list[tuple[str, nn.Module]], name: str, module: nn.Module, args: Any) -> None:
    path.append((name, module))


def _pop(path: list[tuple[str, nn.Module]], module: nn.Module, args: Any, output: Any) -> None:
    path.pop()
