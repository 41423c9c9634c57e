"""What stands for a recorded operation in the moment pass: its rule, or word of why there is none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from . import rules
from .core import Rule
from .trace import Overwritten, Slot, Step, leaves, rule_of


class NoRuleError(ValueError):
    """An operation on the way to an analytic normalization has no moment rule, or one that declines its arguments."""

    def __init__(self, step: Step, message: str) -> None:
        super().__init__(message)
        self.step = step


def find_rule(step: Step) -> Rule | None:
    """The rule of a step that touches activations."""
    rule = rule_of(step.func)
    if rule is None or not isinstance(step.func, nn.Module) or "module" not in inspect.signature(rule).parameters:
        return rule
    return partial(rule, module=step.func)


def function_of(step: Step) -> Callable[..., Any]:
    """The rule of a step that touches activations; the operation itself for one on parameters alone."""
    if isinstance(step.func, Overwritten):
        raise NoRuleError(step, f"{_where(step)} {_SEEN_ELSEWHERE}{_OR_MEASURED if step.active else ''}.")
    if not step.active and not _lends(step):
        return partial(_on_a_copy, step.func) if _writes(step) else step.func
    rule = find_rule(step)
    if rule is None:
        raise NoRuleError(step, f"no moment rule for {_where(step)}. {_REMEDY}")
    return rule


def _lends(step: Step) -> bool:
    """Whether a constant gets its size or dtype from another tensor, of which the pass may have only the moments."""
    return step.func in rules.LENDING and any(isinstance(leaf, Slot) for leaf in leaves((step.args[1:], step.kwargs)))


def _writes(step: Step) -> bool:
    """Whether an operation on parameters changes them: the pass must not."""
    name = getattr(step.func, "__name__", "")
    own = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
    return own or "out" in step.kwargs


def _on_a_copy(func: Callable[..., Any], first: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    first = first.clone() if isinstance(first, Tensor) else first
    result = func(first, *args, **kwargs)
    return first if result is None else result


ALIASES = {"axis": "dim", "keepdims": "keepdim", "axis0": "dim0", "axis1": "dim1", "x2": "other"} | dict.fromkeys(
    ("x", "x1", "a"), "input"
)
"""The names that torch takes from numpy, and its own for them."""


def renamed(rule: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by torch's own names, where the rule has those and not numpy's."""
    known = inspect.signature(rule).parameters
    return {
        ALIASES[name] if name not in known and ALIASES.get(name) in known else name: value
        for name, value in kwargs.items()
    }


def declined(step: Step, error: Exception) -> NoRuleError:
    """What to say where a rule fails, for whatever reason."""
    reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return NoRuleError(step, f"{_where(step)}: {reason}. {_REMEDY}")


def _where(step: Step) -> str:
    return f"{step.operation} in {step.place}"


_REMEDY = (
    "Register one with @bayesnorm.moments.register on rule(m, *args, **kwargs) -> Moments(mean, var), or pass example= "
    "(a batch of inputs) to convert: its moments are then measured once and held."
)
_SEEN_ELSEWHERE = (
    "writes into a view, or into a tensor that has views, and what shares the memory is read again, which the moment "
    "pass does not follow. Write it out of place"
)
_OR_MEASURED = (
    ", or pass example= (a batch of inputs) to convert: the moments of what is read are then measured once and held"
)
