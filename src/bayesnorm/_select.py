"""Which layers of a network are normalized, and which convolution a BatchNorm belongs to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .layers import PLAIN, NormLayer, normalized_class
from .moments.trace import Ref, Step, Trace, leaves

STACK = 6
"""From a warning here to the caller of ``convert``."""

One = str | type[nn.Module] | Callable[[str, nn.Module], bool]
Selector = One | Sequence[One] | None


@dataclass
class Choice:
    """A module that becomes a normalized layer, and the BatchNorm behind it that it takes over."""

    name: str
    module: nn.Module
    bn: _BatchNorm | None = None
    bn_name: str = ""

    @property
    def standalone(self) -> bool:
        """Whether the BatchNorm itself becomes the layer: no convolution is its own."""
        return self.module is self.bn


def matches(selector: Selector, name: str, module: nn.Module) -> bool:
    """Whether a name pattern (``"layer4"`` means all inside it too), type or predicate picks this module."""
    if selector is None:
        return False
    if isinstance(selector, str):
        return fnmatchcase(name, selector) or fnmatchcase(name, selector + ".*")
    if isinstance(selector, type):
        return isinstance(module, selector)
    if callable(selector):
        return bool(selector(name, module))
    return any(matches(one, name, module) for one in selector)


def is_batch_norm(module: nn.Module) -> bool:
    """Whether it is one of torch's BatchNorms, not a subclass that computes something else."""
    return isinstance(module, _BatchNorm) and type(module).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def select(model: nn.Module, traces: Sequence[Trace], include: Selector, exclude: Selector) -> list[Choice]:
    """The layers to normalize: BatchNorms if the network has any, else every convolution and linear layer."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    check_used(
        include,
        "include",
        {n: m for m, all_names in names.items() for n in all_names if normalized_class(m) is not None},
    )
    check_used(exclude, "exclude", {n: m for m, all_names in names.items() for n in all_names})

    def excluded(module: nn.Module) -> bool:
        return any(matches(exclude, name, module) for name in names[module])

    normed = any(isinstance(m, (_BatchNorm, NormLayer)) for m in names)
    outside = used_outside(traces)
    choices = _batch_norms(names, excluded, traces, outside)
    taken = {choice.module for choice in choices}
    wanted = [
        module
        for module, all_names in names.items()
        if (not normed or any(matches(include, name, module) for name in all_names))
        and (normalized_class(module) is not None and module not in taken and not excluded(module))
    ]
    return in_order_of_use([*choices, *_plain_layers(wanted, names, traces, outside)], traces)


def _batch_norms(
    names: dict[nn.Module, list[str]],
    excluded: Callable[[nn.Module], bool],
    traces: Sequence[Trace],
    outside: set[int],
) -> list[Choice]:
    """The BatchNorms that the network calls, with the convolution that each has to itself."""
    called = {step.func for trace in traces for step in trace.steps if isinstance(step.func, nn.Module)}
    choices = []
    for module, (name, *_) in names.items():
        if not isinstance(module, _BatchNorm) or excluded(module):
            continue
        if not is_batch_norm(module):
            _left(name, f"{type(module).__name__} computes more than a BatchNorm")
        elif module not in called:
            _left(name, NOT_CALLED)
        elif has_any(module, outside):
            _left(name, "its weight, bias or statistics are used elsewhere too")
        else:
            conv = own_convolution(module, traces, outside)
            alone = conv is None or excluded(conv)
            layer = module if conv is None or alone else conv
            choices.append(Choice(names[layer][0], layer, module, name))
    return choices


def _plain_layers(
    wanted: Sequence[nn.Module], names: dict[nn.Module, list[str]], traces: Sequence[Trace], outside: set[int]
) -> list[Choice]:
    """Convolutions and linear layers that get a norm where there was none."""
    called = {module_of(step) for trace in traces for step in trace.steps}
    choices = []
    for module in wanted:
        if module not in called:
            _left(names[module][0], NOT_CALLED)
        elif not has_any(module, outside):
            choices.append(Choice(names[module][0], module))
    return choices


NOT_CALLED = "the network did not call it when it was run"


def _left(name: str, reason: str) -> None:
    warnings.warn(f"{name!r} is left as it is: {reason}", stacklevel=STACK)


def check_used(selector: Selector, argument: str, modules: dict[str, nn.Module]) -> None:
    """A pattern that picks nothing is a mistake."""
    parts = selector if isinstance(selector, Sequence) and not isinstance(selector, str) else [selector]
    for part in parts:
        if part is not None and (isinstance(part, nn.Module) or not (isinstance(part, (str, type)) or callable(part))):
            raise ValueError(f"{argument}={part!r}: pass a name pattern, a module type or a predicate f(name, module)")
        if part is not None and not any(matches(part, name, module) for name, module in modules.items()):
            raise ValueError(
                f"{argument}={part!r} matches no module of the network; names are like {[n for n in modules if n][:3]}"
            )


def own_convolution(bn: _BatchNorm, traces: Sequence[Trace], outside: set[int]) -> nn.Module | None:
    """The convolution or linear layer whose output this BatchNorm, and nothing else, reads."""
    convs: set[nn.Module | None] = set()
    for trace in traces:
        producers = trace.producers
        convs |= {module_of(producers.get(step.inputs()[0])) for step in trace.steps if step.func is bn}
    conv = convs.pop() if len(convs) == 1 else None
    if conv is None or conv._forward_hooks or conv._forward_pre_hooks or has_any(conv, outside):
        return None
    for trace in traces:
        uses = trace.uses
        for step in trace.steps:
            if module_of(step) is not conv:
                continue
            readers = uses.get(step.outs[0], [])
            if len(readers) != 1 or readers[0].func is not bn or step.outs[0] in trace.outputs:
                return None
            if isinstance(conv, nn.Linear) and len(step.sizes[0]) != 2:
                return None  # BatchNorm1d normalizes axis 1 of (N, L, C), the linear layer's channels are the last
    return conv


def used_outside(traces: Sequence[Trace]) -> set[int]:
    """Ids of the parameters and buffers that are read elsewhere than in the forward of a layer to be normalized."""
    found = set()
    for trace in traces:
        for step in trace.steps:
            if isinstance(step.func, nn.Module) or module_of(step) is not None:
                continue
            found |= {id(leaf.value) for leaf in leaves((step.args, step.kwargs)) if isinstance(leaf, Ref)}
    return found


def has_any(module: nn.Module, tensors: set[int]) -> bool:
    """Whether some parameter or buffer of the module itself is among these."""
    return any(id(t) in tensors for t in (*module._parameters.values(), *module._buffers.values()))


def module_of(step: Step | None) -> nn.Module | None:
    """The torch layer whose forward made this call with its weight, if it is one that can be normalized."""
    if step is None or len(step.args) < 2 or not isinstance(step.args[1], Ref):
        return None
    module, known = step.caller, (normalized_class(step.caller) is not None or type(step.caller) in PLAIN)
    return module if known and step.func in _LINEAR and step.args[1].value is module.weight else None


_LINEAR = {
    F.linear,
    F.conv1d,
    F.conv2d,
    F.conv3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
}


def in_order_of_use(choices: list[Choice], traces: Sequence[Trace]) -> list[Choice]:
    """The order in which the network calls them; those it never called last."""
    position: dict[nn.Module, int] = {}
    count = 0
    for trace in traces:
        for step in trace.steps:
            module = step.func if isinstance(step.func, nn.Module) else module_of(step)
            if module is not None and module not in position:
                position[module] = count
                count += 1
    return sorted(choices, key=lambda choice: position.get(choice.module, len(position)))
