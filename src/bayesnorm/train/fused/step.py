"""One step of all models of a stack: its kernels, one after the other, some beside the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from . import batch, launch
from .stack import Kind, Stack


def take_step(stack: Stack, size: int) -> None:
    """One step of all active models, with batches of this size."""
    _by_kind(stack, size, _before)
    if stack.chain.norm == "batch":
        _through_batches(stack, size)
    else:
        _through_layers(stack, size)
    if stack.beside is not None:
        torch.cuda.current_stream(stack.device).wait_stream(stack.beside)
    _by_kind(stack, size, _after)


def _through_layers(stack: Stack, size: int) -> None:
    """Forward and back; on the way back, only the gradients of the responses wait for each other."""
    hidden = range(len(stack.chain.links) - 1)
    for i in hidden:
        launch.forward(stack, i, size)
    launch.head(stack, size)
    with _fork(stack):
        launch.last(stack, size)
    for i in reversed(hidden[1:]):
        with _fork(stack):
            launch.weights(stack, i, size)
            launch.scales(stack, i, size)
        launch.backward(stack, i, size)
    with _fork(stack):
        launch.scales(stack, 0, size)
        for kind in stack.kinds:
            launch.totals(stack, kind, size)
    launch.weights(stack, 0, size)


def _through_batches(stack: Stack, size: int) -> None:
    """The same with batch normalization: each layer waits for sums over the batch, there and back."""
    last = len(stack.chain.links) - 1
    for i in range(last + 1):
        launch.forward(stack, i, size)
        batch.pixels(stack, i, size)
        if i < last:
            batch.normalize(stack, i, size)
    batch.head(stack, size)
    for i in reversed(range(last + 1)):
        if i < last:
            launch.scales(stack, i, size)
        batch.unnormalize(stack, i, size)
        with _fork(stack):
            launch.weights(stack, i, size)
        if i:
            launch.backward(stack, i, size)
    for kind in stack.kinds:
        launch.totals(stack, kind, size)


def _by_kind(stack: Stack, size: int, work: Callable[[Stack, Kind, int], None]) -> None:
    """The work of each kind of models, beside that of the others."""
    if stack.beside is None:
        for kind in stack.kinds:
            work(stack, kind, size)
        return
    here = torch.cuda.current_stream(stack.device)
    for kind, stream in zip(stack.kinds[1:], stack.streams, strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            work(stack, kind, size)
    work(stack, stack.kinds[0], size)
    for stream in stack.streams:
        here.wait_stream(stream)


def _before(stack: Stack, kind: Kind, size: int) -> None:
    """What comes before the convolutions."""
    launch.begin(stack, kind, size)
    launch.prepare(stack, kind)


def _after(stack: Stack, kind: Kind, size: int) -> None:
    """What comes behind them."""
    launch.gradients(stack, kind)
    launch.judge(stack, kind, size)
    launch.update(stack, kind)


def _fork(stack: Stack) -> AbstractContextManager[object]:
    """Inside: work that goes on beside the rest, which it follows so far."""
    if stack.beside is None:
        return nullcontext()
    stack.beside.wait_stream(torch.cuda.current_stream(stack.device))
    return torch.cuda.stream(stack.beside)
