"""Calls that a backward pass may repeat, so that they draw again what they drew: activation checkpointing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._scope import Noise, Sampling, first_tensor
from .moments.core import is_eager

CALLS = 1024
"""Calls that are remembered."""


def repeating() -> bool:
    """Whether this call repeats a forward inside a backward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


@dataclass(frozen=True, eq=False)
class _Past:
    """A call that was made.

    Arguments:
        opening: of the module that was called.
        pointer: where its batch was.
        number: that the next operation recorded by autograd got.
        recording: whether autograd recorded.
        noise: what was drawn.
    """

    opening: object
    pointer: int
    number: int
    recording: bool
    noise: Noise


class Repeats:
    """The last calls of a network.

    A recorded operation whose saved tensors are gone makes torch repeat the block that it was in. Operations are
    numbered as they are recorded, so its number says in which call that was: the last that began before.
    """

    def __init__(self) -> None:
        self.calls: deque[_Past] = deque(maxlen=CALLS)

    def add(self, opening: object, x: Tensor, noise: Noise) -> None:
        """Remember a call that begins."""
        pointer = x.data_ptr() if is_eager() else 0
        number = torch._C._autograd._get_sequence_nr()
        self.calls.append(_Past(opening, pointer, number, torch.is_grad_enabled(), noise))

    def forget(self, sampling: Sampling) -> None:
        """Drop the calls that drew so: no backward pass will repeat them any more."""
        for call in list(self.calls):
            if call.noise.sampling is sampling:
                self.calls.remove(call)

    def find(self, opening: object, args: Sequence[Any], kwargs: dict[str, Any]) -> Noise | None:
        """That of the call which is repeated; None if there was none.

        Raises:
            RuntimeError: it was too long ago.
        """
        node = torch._C._current_autograd_node()
        if not self.calls or node is None:
            return None
        number = node._sequence_nr()
        past = [call for call in self.calls if call.number <= number or _inside(call, number)]
        if not past:
            raise RuntimeError(
                f"a checkpointed block is repeated after more than {CALLS} other calls of the network, and its noise "
                "is no longer known: call backward() more often"
            )
        last = past[-1]
        if last.opening is opening:
            # A checkpoint may hold several whole calls: the batch tells which.
            pointer = first_tensor(args, kwargs).data_ptr()
            last = next((call for call in reversed(past) if (call.opening, call.pointer) == (opening, pointer)), last)
        return last.noise


def _inside(call: _Past, number: int) -> bool:
    """Whether a call was inside a checkpoint of the older kind, which gets its number before and does not record."""
    return not call.recording and call.number == number + 1
