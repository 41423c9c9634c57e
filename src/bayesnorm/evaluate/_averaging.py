"""Averages of probabilities over draws, a piece of the input at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from .._predict import average
from ..data import passes

Inputs = Tensor | Iterable[Tensor]
"""A batch ``(N, ...)``, or the pieces of a larger set, one after the other."""


def averaged(x: Inputs, max_rows: int | None, outputs: Callable[[Tensor, int], Iterator[object]]) -> Tensor:
    """``log(1/K sum_k softmax(out_k))`` of all inputs, ``(N, C, *space)``.

    Arguments:
        x: the inputs.
        max_rows: most inputs at a time; None: by their size.
        outputs: of a piece and the number of its first input, the network's K outputs (logits or log-probabilities).
    """
    results = []
    done = 0
    for piece in pieces(x, max_rows):
        results.append(average(_checked(outputs(piece, done)), "logits")[1])
        done += len(piece)
    if not results:
        raise ValueError("x holds no input: pass at least one")
    return torch.cat(results)


def pieces(x: Inputs, max_rows: int | None) -> Iterator[Tensor]:
    """The inputs in order, at most ``max_rows`` at a time."""
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows={max_rows}: must be at least 1")
    for part in [x] if isinstance(x, Tensor) else x:
        rows = max_rows or max(1, passes.PIXELS // max(1, math.prod(part.shape[2:] or part.shape[1:])))
        yield from (piece for piece in part.split(rows) if len(piece))


def _checked(outputs: Iterator[object]) -> Iterator[Tensor]:
    """The outputs ``(1, N, C, *space)`` one by one, all of one shape."""
    shape: torch.Size | None = None
    for number, out in enumerate(outputs):
        if not isinstance(out, Tensor):
            raise ValueError(f"the network returned {type(out).__name__}: wrap it so that it returns one tensor")
        if shape is not None and out.shape != shape:
            raise ValueError(
                f"output {number} has shape {tuple(out.shape)}, those before it {tuple(shape)}: "
                "average networks of the same classes"
            )
        shape = out.shape
        yield out.unsqueeze(0)
