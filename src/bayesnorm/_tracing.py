"""Recording a network for conversion: inputs to run it on, and both modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._modes import mode
from ._select import Choice, is_batch_norm, module_of
from .layers import NormLayer, norm_layers
from .moments import core
from .moments.record import record
from .moments.trace import Trace, leaves

GUESSES = (32, 64, 28, 96, 128, 224, 256, 299, 16, 8, 48, 512)
BATCH = 2
MEASURED = 256
"""Samples of an example whose activations are held at once."""

Example = Tensor | tuple[Any, ...]


def trace(
    model: nn.Module, example: Example | None, input_size: tuple[int, ...] | None, channels: int = 1
) -> list[Trace]:
    """Record the network in training mode and in evaluation mode, shapes only where the network allows it."""
    if example is not None:
        whole = as_tuple(example)
        sizes = ", ".join(str(tuple(x.shape)) for x in whole if isinstance(x, Tensor))
        return _trace_both(model, [_few(whole, BATCH), whole], sizes)
    tried = guesses(model, channels) if input_size is None else [tuple(input_size)]
    more = f" nor on {len(tried) - 1} other guesses" if len(tried) > 1 else ""
    return _trace_both(model, [(blank(model, size),) for size in tried], f"{(BATCH, *tried[0])}{more}")


def measure(model: nn.Module, example: Example) -> list[Trace]:
    """The same on (the first samples of) the example itself, the moments of every activation measured on the way."""
    whole = as_tuple(example)
    return _both_modes(model, _few(whole, min(MEASURED, _batch(whole))), True)


def _batch(inputs: tuple[Any, ...]) -> int:
    """Number of samples: the length of the first tensor that has one."""
    return next(len(x) for x in leaves(inputs) if isinstance(x, Tensor) and x.dim())


def _few(inputs: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The arguments with this many samples; a tensor of another length than the batch stays as it is."""
    batch = _batch(inputs)

    def cut(x: Any) -> Any:
        if type(x) in (tuple, list):
            return type(x)(map(cut, x))
        if type(x) is dict:
            return {key: cut(value) for key, value in x.items()}
        if not isinstance(x, Tensor) or x.dim() == 0 or len(x) != batch:
            return x
        return x[:count] if batch >= count else x.repeat(count, *[1] * (x.dim() - 1))[:count]

    return tuple(map(cut, inputs))


def _trace_both(model: nn.Module, candidates: list[tuple[Any, ...]], sizes: str) -> list[Trace]:
    failure: Exception | None = None
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for shape_only in (True, False):
        for inputs in candidates:
            try:
                return _both_modes(model, tuple(_placed(x, shape_only, device) for x in inputs), False)
            except Exception as error:  # any error of the user's own forward
                failure = error
    raise ValueError(
        f"the network did not run on inputs of size {sizes} ({type(failure).__name__}: {failure}). "
        "Pass input_size=(channels, height, width) or example= (a batch)."
    ) from failure


def _placed(x: Any, shape_only: bool, device: torch.device) -> Any:
    if not isinstance(x, Tensor):
        return x
    if shape_only:
        return torch.empty_like(x, device="meta")
    return torch.zeros_like(x, device=device) if x.is_meta else x


def _both_modes(model: nn.Module, inputs: tuple[Any, ...], measuring: bool) -> list[Trace]:
    shape_only = any(isinstance(x, Tensor) and x.is_meta for x in inputs)
    traces = []
    for training in (True, False):
        with mode(model, training):
            if measuring:  # moments are those of the mean scales, as the rules have them
                for layer in norm_layers(model).values():
                    layer.training = False
            try:
                traces.append(record(model, inputs, leaf=partial(_leaf, shape_only), measure=measuring))
            except Exception:
                # One mode is enough: a training forward may want what a blank input does not have.
                if not training:
                    raise
    return traces


def _leaf(shape_only: bool, module: nn.Module) -> Callable[..., Any] | None:
    """Modules recorded as one step: normalizations, and classes with a rule of their own."""
    if is_batch_norm(module):
        return partial(_shaped if shape_only else _evaluated, cast(_BatchNorm, module))
    if isinstance(module, NormLayer):
        return partial(_responded, module) if shape_only else module.forward
    known = core.find(type(module)) is not None and not isinstance(module, _BatchNorm)
    return module.forward if known else None


def _shaped(bn: _BatchNorm, input: Tensor) -> Tensor:
    if input.dim() < 2 or input.size(1) != bn.num_features:
        raise ValueError(f"a batch norm of {bn.num_features} channels got an input of shape {tuple(input.shape)}")
    return torch.empty_like(input)


def _evaluated(bn: _BatchNorm, input: Tensor) -> Tensor:
    batch = bn.running_mean is None
    return F.batch_norm(input, bn.running_mean, bn.running_var, bn.weight, bn.bias, batch, 0.0, bn.eps)


def _responded(layer: NormLayer, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    weight = layer.weight_vectors()
    return torch.empty_like(input) if weight is None else layer.respond(input, weight, None, *args, **kwargs)


def as_tuple(example: Example) -> tuple[Any, ...]:
    """Arguments of the call."""
    arguments = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    lengths = [len(x) for x in leaves(arguments) if isinstance(x, Tensor) and x.dim()]
    if not lengths or 0 in lengths:
        raise ValueError(
            f"example of type {type(example).__name__}: pass a batch of inputs (a tensor, or a tuple of the network's "
            "arguments) that is not empty"
        )
    return arguments


def blank(model: nn.Module, size: tuple[int, ...]) -> Tensor:
    """The shape of a batch, in the network's dtype."""
    first = next(iter(model.parameters()), torch.zeros(()))
    return torch.empty((BATCH, *size), dtype=first.dtype, device="meta")


def guesses(model: nn.Module, channels: int) -> list[tuple[int, ...]]:
    """Input sizes to try, from the first layers' channels and the number of channels that the data has."""
    sizes: list[tuple[int, ...]] = []
    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            space = len(module.kernel_size)
            sizes += [(module.in_channels, *[n if space < 3 else n // 2] * space) for n in GUESSES]
            break
    for module in model.modules():
        if isinstance(module, nn.Linear):
            side = math.isqrt(module.in_features // channels)
            if channels > 1 and channels * side**2 == module.in_features:
                sizes.append((channels, side, side))
            sizes.append((module.in_features,))
            break
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            sizes += [(module.num_features, *[8] * space) for space in (2, 0, 1, 3)]
            break
    return sizes or [(3, 32, 32)]


def lowered(trace: Trace, choices: Sequence[Choice]) -> Trace:
    """The same run in terms of the normalized layers: a convolution and the BatchNorm behind it are one step."""
    fused = {choice.bn: choice.module for choice in choices if choice.bn is not None and not choice.standalone}
    alone = {choice.module for choice in choices if choice.bn is None}
    producers = trace.producers
    steps = []
    for step in trace.steps:
        conv = module_of(step)
        if step.func in fused:
            source = producers[step.inputs()[0]]
            steps.append(replace(step, func=fused[step.func], args=source.args[:1], kwargs={}, candidate=None))
        elif conv in alone and conv is not None:
            steps.append(replace(step, func=conv, args=step.args[:1], kwargs={}, candidate=None))
        elif conv is None or conv not in fused.values():
            steps.append(step)
    return replace(trace, steps=steps)


def clean_cut(traces: Sequence[Trace], layers: Sequence[NormLayer]) -> bool:
    """Whether nothing computed before the first random layer is used behind it, so that it can be computed once."""
    random = {layer for layer in layers if layer.is_random}
    steps = traces[-1].steps
    first = next((i for i, step in enumerate(steps) if step.func in random), None)
    if first is None:
        return False
    before = {out for step in steps[:first] if step.active for out in step.outs} | set(traces[-1].inputs)
    after = {slot for step in steps[first + 1 :] for slot in step.inputs()} | traces[-1].outputs
    return not before & after


def activations(traces: Sequence[Trace]) -> tuple[int, int]:
    """Numbers per sample in the inputs, and in the inputs and outputs of the largest step of the evaluation run."""
    run = traces[-1]
    per_sample = {slot: size[1:].numel() for slot, size in run.sizes.items()}
    held = [sum(per_sample[slot] for slot in {*step.inputs(), *step.outs}) for step in run.steps if step.active]
    return max(1, sum(per_sample[slot] for slot in run.inputs)), max([1, *held])
