"""Which layers of a network are normalized, and which convolution a BatchNorm belongs to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .layers import NORMALIZED, PLAIN, NormLayer
from .moments.trace import Ref, Step, Trace

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


def select(model: nn.Module, traces: Sequence[Trace], include: Selector, exclude: Selector) -> list[Choice]:
    """The layers to normalize: BatchNorms if the network has any, else every convolution and linear layer."""
    names = {module: name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
    modules = dict(model.named_modules())
    normed = any(isinstance(m, (_BatchNorm, NormLayer)) for m in modules.values())
    check_used(include, "include", modules)
    check_used(exclude, "exclude", modules)
    choices = []
    for name, module in modules.items():
        if matches(exclude, name, module):
            continue
        if isinstance(module, _BatchNorm):
            if not any(step.func is module for trace in traces for step in trace.steps):
                warnings.warn(f"{name!r} is left as it is: the network did not call it when it was run", stacklevel=3)
                continue
            conv = own_convolution(module, traces)
            if conv is None or matches(exclude, names[conv], conv):
                choices.append(Choice(name, module, module, name))
            else:
                choices.append(Choice(names[conv], conv, module, name))
    taken = {choice.module for choice in choices}
    for name, module in modules.items():
        wanted = not normed or matches(include, name, module)
        free = module not in taken and not matches(exclude, name, module)
        if type(module) in NORMALIZED and wanted and free:
            choices.append(Choice(name, module))
    return in_order_of_use(choices, traces)


def check_used(selector: Selector, argument: str, modules: dict[str, nn.Module]) -> None:
    """A pattern that picks nothing is a mistake."""
    parts = selector if isinstance(selector, Sequence) and not isinstance(selector, str) else [selector]
    for part in parts:
        if part is not None and not any(matches(part, name, module) for name, module in modules.items()):
            raise ValueError(
                f"{argument}={part!r} matches no module of the network; names are like {list(modules)[1:4]}"
            )


def own_convolution(bn: _BatchNorm, traces: Sequence[Trace]) -> nn.Module | None:
    """The convolution or linear layer whose output this BatchNorm, and nothing else, reads."""
    convs: set[nn.Module | None] = set()
    for trace in traces:
        producers, uses = trace.producers(), trace.uses()
        for step in trace.steps:
            if step.func is bn:
                convs.add(module_of(producers.get(step.inputs()[0])))
        for conv in convs:
            for step in trace.steps:
                if conv is not None and module_of(step) is conv:
                    readers = uses.get(step.outs[0], [])
                    if len(readers) != 1 or readers[0].func is not bn or step.outs[0] in trace.outputs:
                        return None
    conv = convs.pop() if len(convs) == 1 else None
    if conv is None or conv._forward_hooks or conv._forward_pre_hooks:
        return None
    return conv


def module_of(step: Step | None) -> nn.Module | None:
    """The torch layer that made this call with its own weight, if it is one that can be normalized."""
    if step is None or len(step.args) < 2 or not isinstance(step.args[1], Ref):
        return None
    weight = step.args[1]
    kind = type(weight.module)
    known = (kind in NORMALIZED or kind in PLAIN) and weight.name == "weight" and step.operation in _LINEAR
    return weight.module if known else None


_LINEAR = {"linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))}


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
