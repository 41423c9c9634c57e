"""What a moment is, and the table of rules that carry moments through operations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)


def wide(t: Tensor) -> Tensor:
    """Float32 or better: half precision cannot hold statistics."""
    return t.float() if t.dtype in HALF else t


def is_eager() -> bool:
    """Whether operations run as they are written: no compiler, no transform of ``torch.func``."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Inside, operations keep the dtype of their arguments. Where autocast is off anyway the switch would cost time."""
    if device_type == "meta" or (is_eager() and not torch.is_autocast_enabled(device_type)):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def mean_var(x: Tensor, axis: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance over all axes but one.

    >>> mean_var(torch.tensor([[0.0, 2.0], [4.0, 2.0]]), 1)
    (tensor([2., 2.]), tensor([4., 0.]))
    """
    rest = [i for i in range(x.dim()) if i != axis]
    var, mean = torch.var_mean(x, dim=rest, correction=0, keepdim=keepdim)
    return mean, var


@dataclass(frozen=True)
class Moments:
    """Mean and variance of an activation over the data set.

    ``mean`` and ``var`` have the rank of the activation and size 1 along the batch axis and along every axis
    on which the statistics are constant: a feature map ``(N, C, H, W)`` has moments ``(1, C, 1, 1)``.

    Arguments:
        mean: expected value, broadcastable to the activation.
        var: variance, broadcastable to the activation.
        size: size of the activation itself when the network was traced. Rules may read it; a rule need not set it.

    >>> m = Moments(torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1), torch.Size((2, 3, 8, 8)))
    >>> m.size[2:].numel()
    64
    """

    mean: Tensor
    var: Tensor
    size: torch.Size | None = None

    def sized(self, size: torch.Size) -> Moments:
        """The same moments for an activation of this size."""
        return replace(self, size=size)


Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)
Target = Callable[..., Any] | str | type[nn.Module]

_rules: dict[Any, Rule] = {}
_elementwise: dict[int, Rule] = {}


def register(*targets: Target) -> Callable[[RuleT], RuleT]:
    """Register ``rule(m, *args, **kwargs) -> Moments(mean, var)`` for torch functions, tensor methods or modules.

    Each target is a function (``torch.relu``, or one of your own at the top level of a module), the name of a tensor
    method (``"relu"``) or a module class. The rule is called with the arguments of the operation, every activation
    among them replaced by its :class:`Moments`. The rule of a module class that has a parameter ``module`` gets the
    module by that keyword. The latest registration wins.

    >>> def double(x):
    ...     return 2 * x
    >>> @register(double)
    ... def double_rule(m):
    ...     return Moments(2 * m.mean, 4 * m.var)
    >>> find(double) is double_rule
    True
    """

    def add(rule: RuleT) -> RuleT:
        for target in targets:
            _rules[_key(target)] = rule
        return rule

    return add


def elementwise(rule: RuleT) -> RuleT:
    """Mark a rule of one activation whose result is, number by number, a function of its mean and variance alone."""
    _elementwise[id(rule)] = rule  # a rule need not be hashable
    return rule


def is_elementwise(rule: Rule) -> bool:
    """Whether a rule may be applied to several activations laid end to end."""
    return id(rule) in _elementwise


def find(target: Target) -> Rule | None:
    """The rule of a function, method name or module class (its base classes included), or None."""
    if isinstance(target, type):
        return next((_rules[base] for base in target.__mro__ if base in _rules), None)
    return _rules.get(_key(target))


def python_functions() -> list[FunctionType]:
    """Registered functions whose calls torch does not show by itself."""
    return [f for f in _rules if isinstance(f, FunctionType) and not f.__module__.startswith("torch")]


def _key(target: Target) -> Any:
    if not isinstance(target, str):
        return target
    try:
        return getattr(torch.Tensor, target)
    except AttributeError:
        raise ValueError(
            f"torch.Tensor has no method {target!r}; pass a function, a method name or a module class"
        ) from None
