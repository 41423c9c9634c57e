"""Recording what a network computes: one real or shape-only run, every torch call a step."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import core, rules
from .trace import Attribute, Here, Overwritten, Ref, Slot, Step, Trace, leaves, rebuild, unseen


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
        self._versions: dict[int, int] = {}
        self._writers: dict[int, tuple[str, nn.Module, Overwritten, bool]] = {}
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
        self._versions[id(tensor)] = _version(tensor)
        self._writers.pop(id(tensor), None)
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
        read = self.read(args, kwargs)
        out = func(*args, **kwargs)
        result = args[0] if func is Tensor.__setitem__ else out
        tensors = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        if tensors:
            if getattr(func, "__name__", "") == "__get__":
                func = Attribute(func.__self__.__name__)
            self.record(func, args, kwargs, result, tensors)
        self.look_for_writes(func, read)
        return out

    def read(self, args: Any, kwargs: Any) -> list[tuple[Tensor, int]]:
        """The tensors that an operation is about to read, and how often each was written to."""
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            if id(tensor) in self._writers:
                self._found(tensor, *self._writers[id(tensor)], (self._slots[id(tensor)],))
        return [(tensor, _version(tensor)) for tensor in tensors]

    def look_for_writes(self, func: Any, read: list[tuple[Tensor, int]]) -> None:
        """Of an operation that wrote into what it read, what else has that memory is no longer what it was."""
        written = [self._slots.get(id(t)) for t, version in read if _version(t) != version]
        if not written:
            return
        writer = Overwritten(getattr(func, "__name__", type(func).__name__))
        activation = any(slot is not None and slot.id in self._active for slot in written)
        for tensor in self._alive:
            known, now = self._versions.get(id(tensor)), _version(tensor)
            if known is not None and known != now:
                self._versions[id(tensor)] = now
                active = activation or self._slots[id(tensor)].id in self._active
                self._writers[id(tensor)] = (*self.path[-1], writer, active)

    def record(self, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Tensor]) -> None:
        """Append a step, unless it only hands an argument on."""
        coded_args, coded_kwargs = rebuild((tuple(args), dict(kwargs)), self._code)
        takes = coded_args[:1] if func in rules.LENDING else (coded_args, coded_kwargs)
        slots = [leaf.id for leaf in leaves(takes) if isinstance(leaf, Slot)]
        active = func in rules.RANDOM or any(slot in self._active for slot in slots)
        single = isinstance(out, Tensor)
        candidate = tuple(_measure(t) for t in tensors) if active and self.measure else None
        outs = tuple(self.new_slot(t, active) for t in tensors)
        sizes = tuple(t.size() for t in tensors)
        step = Step(*self.path[-1], func, coded_args, coded_kwargs, outs, sizes, single, active, candidate)
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
        return self._found(leaf, *self.path[-1], unseen, True, ())

    def _found(
        self, tensor: Tensor, where: str, caller: nn.Module, func: Any, active: bool, args: tuple[Slot, ...]
    ) -> Slot:
        """A tensor that is read and of which no recorded operation says what it is."""
        slot = Slot(self.new_slot(tensor, active))
        candidate = (_measure(tensor),) if self.measure and active else None
        step = Step(where, caller, func, args, {}, (slot.id,), (tensor.size(),), True, active, candidate)
        self.trace.steps.append(step)
        return slot


def _version(tensor: Tensor) -> int:
    """How often the memory of a tensor was written to; tensors made in inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def _measure(x: Tensor) -> core.Moments:
    """Mean and variance over batch and space of a measured activation; the channel axis is 1."""
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    return core.Moments(*core.mean_var(x, 1, keepdim=True))


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
        measure: measure the moments of every activation (needs real inputs).
    """
    device = next((t.device for t in leaves(inputs) if isinstance(t, Tensor)), torch.device("cpu"))
    recorder = _Recorder(model, measure)
    tensors = _copies(model, recorder, device.type == "meta")
    for tensor in leaves(inputs):
        if isinstance(tensor, Tensor):
            recorder.trace.inputs.append(recorder.new_slot(tensor, active=True))
    devices = [device.index] if device.type == "cuda" else []
    with (
        _as_it_was(model, recorder),
        torch.random.fork_rng(devices=devices),
        torch.no_grad(),
        _leaves(model, recorder, leaf),
        _python_functions(recorder),
        torch.device(device),
        recorder,
    ):
        # No ties: an alias that is swapped under two names would be restored to the copy.
        out = torch.func.functional_call(model, tensors, inputs, tie_weights=False)
    for tensor in _tensors_of(out):
        slot = recorder.slot_of(tensor)
        if slot is not None:
            recorder.trace.outputs.add(slot.id)
    return recorder.trace


def _copies(model: nn.Module, recorder: _Recorder, shape_only: bool) -> dict[str, Tensor]:
    """Parameters and buffers for the run, each module once under one name; the recorder knows what they stand for."""
    copies: dict[int, Tensor] = {}
    named: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            if id(tensor) not in copies:
                copies[id(tensor)] = torch.empty_like(tensor, device="meta") if shape_only else tensor.detach().clone()
                recorder.refer(copies[id(tensor)], module, name)
            named[f"{path}.{name}" if path else name] = copies[id(tensor)]
    return named


@contextmanager
def _as_it_was(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """What the forward writes into attributes, and into lists and dicts there, is undone; it counts as an output."""
    before = {module: dict(vars(module)) for module in model.modules()}
    tables = [(v, v.copy()) for m in before for v in vars(m).values() if isinstance(v, (dict, list))]
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
        for module, attributes in before.items():
            for value in leaves(list(vars(module).values())):
                slot = recorder.slot_of(value) if isinstance(value, Tensor) else None
                if slot is not None:
                    recorder.trace.outputs.add(slot.id)
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for table, contents in tables:
            table.clear()
            if isinstance(table, list):
                table.extend(contents)
            else:
                table.update(contents)


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

    try:
        for name, module in model.named_modules():
            compute = leaf(module)
            if compute is not None:
                module.__dict__["forward"] = partial(_as_one_step, recorder, module, compute)
                patched.append(module)
            handles.append(module.register_forward_pre_hook(partial(_push, recorder.path, name), prepend=True))
            handles.append(module.register_forward_hook(partial(_pop, recorder.path), always_call=True))
        yield
    finally:
        for module in patched:
            del module.__dict__["forward"]
        for handle in handles:
            handle.remove()


@contextmanager
def _python_functions(recorder: _Recorder) -> Iterator[None]:
    """During the run, Python functions that have a rule record themselves as one step, wherever a module names them."""
    wanted = {id(function): function for function in core.python_functions()}
    places = [
        (vars(module), name, wanted[id(value)])
        for module in (list(sys.modules.values()) if wanted else [])
        for name, value in list(getattr(module, "__dict__", {}).items())
        if id(value) in wanted
    ]
    try:
        for table, name, function in places:
            table[name] = partial(_as_one_step, recorder, function, function)
        yield
    finally:
        for table, name, function in places:
            table[name] = function


def _as_one_step(
    recorder: _Recorder, func: Callable[..., Any], compute: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Compute, and record ``func`` instead of the operations inside."""
    if recorder.paused:
        return compute(*args, **kwargs)
    recorder.paused += 1
    try:
        read = recorder.read(args, kwargs)
        out = compute(*args, **kwargs)
        tensors = [t for t in leaves(out) if isinstance(t, Tensor)]
        if tensors:
            recorder.record(func, args, kwargs, out, tensors)
        recorder.look_for_writes(func, read)
    finally:
        recorder.paused -= 1
    return out


def _push(path: list[tuple[str, nn.Module]], name: str, module: nn.Module, args: Any) -> None:
    path.append((name, module))


def _pop(path: list[tuple[str, nn.Module]], module: nn.Module, args: Any, output: Any) -> None:
    path.pop()
