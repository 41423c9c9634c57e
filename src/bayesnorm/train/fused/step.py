"""One step of all models of a stack: its kernels, one after the other, some beside the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from . import batch, maps, parameters
from .stack import Kind, Stack

Stream = torch.cuda.Stream | None
"""None: there is no device, and everything is done in turn."""


def take_step(stack: Stack, size: int) -> None:
    """One step of all active models, with batches of this size."""
    with _fork(stack, stack.beside):
        maps.patches(stack, size)
    _by_kind(stack, size, _before)
    _join(stack, stack.beside)
    if stack.chain.norm == "batch":
        _through_batches(stack, size)
    else:
        _through_layers(stack, size)
    _join(stack, stack.beside, stack.aside)
    _by_kind(stack, size, _after)


def _through_layers(stack: Stack, size: int) -> None:
    """Forward and back; on the way back, only the gradients of the responses wait for each other."""
    hidden = range(len(stack.chain.links) - 1)
    for i in hidden:
        maps.forward(stack, i, size)
    maps.head(stack, size)
    with _fork(stack, stack.aside):
        maps.last(stack, size)
    for i in reversed(hidden[1:]):
        with _fork(stack, stack.beside):
            maps.weights(stack, i, size)
        maps.backward(stack, i, size)
        with _fork(stack, stack.aside, stack.beside):
            maps.add_parts(stack, i)
            maps.scales(stack, i - 1, size)
    with _fork(stack, stack.aside):
        for kind in stack.kinds:
            parameters.totals(stack, kind, size)
    maps.weights(stack, 0, size)
    maps.add_parts(stack, 0)


def _through_batches(stack: Stack, size: int) -> None:
    """The same with batch normalization: each layer waits for sums over the batch, there and back."""
    last = len(stack.chain.links) - 1
    for i in range(last + 1):
        maps.forward(stack, i, size)
        batch.pixels(stack, i, size)
        if i < last:
            batch.normalize(stack, i, size)
    batch.head(stack, size)
    for i in reversed(range(last + 1)):
        if i < last:
            maps.scales(stack, i, size)
        batch.unnormalize(stack, i, size)
        with _fork(stack, stack.beside):
            maps.weights(stack, i, size)
        if i:
            maps.backward(stack, i, size)
        with _fork(stack, stack.aside, stack.beside):
            maps.add_parts(stack, i)
    for kind in stack.kinds:
        parameters.totals(stack, kind, size)


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
    parameters.begin(stack, kind, size)
    parameters.prepare(stack, kind)


def _after(stack: Stack, kind: Kind, size: int) -> None:
    """What comes behind them."""
    parameters.gradients(stack, kind)
    parameters.judge(stack, kind, size)
    parameters.update(stack, kind)


def _fork(stack: Stack, stream: Stream, *others: Stream) -> AbstractContextManager[object]:
    """Inside: work on a stream of its own, which follows all so far, also that on others."""
    if stream is None:
        return nullcontext()
    _wait(stream, torch.cuda.current_stream(stack.device), *others)
    return torch.cuda.stream(stream)


def _join(stack: Stack, *streams: Stream) -> None:
    """Go on when others have come so far."""
    if stack.device.type == "cuda":
        _wait(torch.cuda.current_stream(stack.device), *streams)


def _wait(stream: torch.cuda.Stream, *others: Stream) -> None:
    for other in others:
        if other is not None:
            stream.wait_stream(other)
