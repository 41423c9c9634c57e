"""Normalized layers of a network -> one runtime that they share, with its moment pass and its buffers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import noise
from ._hooks import Broadcast, hook, release_buffers, unhook
from ._tracing import Example, activations, clean_cut, measure
from .layers import NormLayer, norm_layers
from .moments.lookup import NoRuleError
from .moments.program import Program
from .moments.trace import Ref, Step, Trace
from .runtime import Opening, Runtime

InputStats = tuple[Any, Any] | list[tuple[Any, Any]] | None


def wire(model: nn.Module, traces: list[Trace], input_stats: InputStats) -> None:
    """Give all normalized layers a common runtime and let every module that contains some open the scope of a call."""
    layers = list(norm_layers(model).values())
    for index, layer in enumerate(layers):
        layer.number_(index)
    unhook(model)
    _release(model)
    device = layers[0].scale.s.device
    if "noise_key" not in model.__dict__.get("bayesnorm_buffers", {}):
        _keep(model, "noise_key", torch.tensor(noise.draw_key(None), dtype=torch.int64, device=device))
        _keep(model, "noise_step", torch.tensor(0, dtype=torch.int64, device=device))
    wanting = [layer for layer in layers if layer.wants_moments]
    program = _program(model, traces, input_stats, wanting) if wanting else None
    runtime = Runtime(model, layers, program, clean_cut(traces, layers), activations(traces))
    for module in model.modules():
        inside = [m for m in module.modules() if isinstance(m, NormLayer)]
        if not inside:
            continue
        opening = Opening(runtime, inside)
        opening.prepare()
        if isinstance(module, NormLayer):
            module.opening = opening
        else:
            hook(module, opening)


def _keep(model: nn.Module, purpose: str, value: Tensor) -> str:
    """A buffer of the root that folding takes away again, under a name that is not the user's own."""
    ours: dict[str, str] = model.__dict__.setdefault("bayesnorm_buffers", {})
    if purpose not in ours:
        ours[purpose] = f"bayesnorm_{purpose}" if hasattr(model, purpose) else purpose
    model._buffers.pop(ours[purpose], None)
    model.register_buffer(ours[purpose], value)
    return ours[purpose]


def _release(model: nn.Module) -> None:
    """Parts that were converted before share the new root's runtime: theirs and its buffers go."""
    for module in model.modules():
        if module is not model:
            release_buffers(module)


def _program(model: nn.Module, traces: list[Trace], input_stats: InputStats, wanting: list[NormLayer]) -> Program:
    """The moment pass of a network, everything that it needs besides the parameters in buffers of the root."""
    program = Program(traces, _input_references(model, traces, input_stats, wanting[0].scale.s))
    names = {module: name for name, module in model.named_modules()}
    for layer in wanting:
        if layer not in program.sites:
            raise ValueError(
                f"the network did not call {names[layer]!r} when it was run for conversion, so the statistics of its "
                "input are unknown: leave it alone with exclude=, or pass an example= that reaches it"
            )
    while True:
        _hold(model, program.steps(wanting))
        try:
            with torch.no_grad():
                program.run(program.plan(wanting))
        except NoRuleError as error:
            if error.step.candidate is None or error.step.measured is not None:
                raise
            error.step.measured = error.step.candidate
        else:
            return program


def _input_references(
    model: nn.Module, traces: list[Trace], input_stats: InputStats, like: Tensor
) -> list[tuple[Ref, Ref]]:
    """Statistics of the inputs as buffers of the root: ``input_mean``, ``input_var``, ``input_mean_1``, ..."""
    ours, channels = model.__dict__["bayesnorm_buffers"], {}
    references = []
    for number, (slot, values) in enumerate(_given(traces[0], input_stats, like).items()):
        purposes = _purposes(number)
        for purpose, value in zip(purposes, values, strict=True):
            if input_stats is not None or purpose not in ours:
                _keep(model, purpose, value)
            channels[ours[purpose]] = _channels(traces[0].sizes[slot])
        references.append((Ref(model, ours[purposes[0]]), Ref(model, ours[purposes[1]])))
    model.register_load_state_dict_pre_hook(Broadcast(channels))
    return references


def has_statistics(model: nn.Module, traces: list[Trace], input_stats: InputStats, like: Tensor) -> bool:
    """Whether the network has these statistics of its inputs already."""
    ours = model.__dict__.get("bayesnorm_buffers", {})
    for number, values in enumerate(_given(traces[0], input_stats, like).values()):
        for purpose, value in zip(_purposes(number), values, strict=True):
            held = getattr(model, ours[purpose]) if purpose in ours else None
            if held is None or (held.shape != value.shape and 1 not in (len(held), len(value))):
                return False
            if not (held == value).all():
                return False
    return True


def _purposes(number: int) -> tuple[str, str]:
    suffix = f"_{number}" if number else ""
    return f"input_mean{suffix}", f"input_var{suffix}"


def _given(trace: Trace, input_stats: InputStats, like: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Mean and variance of each input slot, as the user says or else 0 and 1."""
    count = len(trace.inputs)
    pairs = input_stats if isinstance(input_stats, list) else [input_stats] * count
    if len(pairs) != count:
        raise ValueError(
            f"input_stats has {len(pairs)} pairs for a network of {count} inputs: pass a tuple (mean, var), or a list "
            "with one for each input"
        )
    return {
        slot: _checked(pair if pair is not None else (0.0, 1.0), trace.sizes[slot], like)
        for slot, pair in zip(trace.inputs, pairs, strict=True)
    }


def _channels(size: torch.Size) -> int:
    return size[1] if len(size) > 1 else 1


def _checked(pair: Any, size: torch.Size, like: Tensor) -> tuple[Tensor, Tensor]:
    try:
        mean, var = (torch.as_tensor(value, dtype=like.dtype, device=like.device).flatten().clone() for value in pair)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"input_stats={pair!r}: pass a pair (mean, var) of numbers or of one value per channel"
        ) from None
    channels = _channels(size)
    for name, value in (("mean", mean), ("var", var)):
        if value.numel() not in (1, channels):
            raise ValueError(
                f"input_stats: {name} has {value.numel()} values for an input of {channels} channels "
                f"(size {tuple(size[1:])}): if the network's input is another, pass input_size= or example="
            )
        if not value.isfinite().all():
            raise ValueError(f"input_stats: {name} has NaN or infinite values")
    if (var < 0).any():
        raise ValueError(
            f"input_stats: var has the negative value {var.min().item()}; pass the variance, not its logarithm"
        )
    # Of an image the channels are known. Of other inputs, axis 1 may be the length of a sequence.
    return (mean.expand(channels).clone(), var.expand(channels).clone()) if len(size) == 4 else (mean, var)


def _hold(model: nn.Module, steps: Iterable[Step]) -> None:
    """Measured moments of operations without a rule become buffers of the root."""
    for step in steps:
        if step.measured is None or step.held:
            continue
        held = []
        for moments in step.measured:
            number = sum(purpose.startswith("held_mean_") for purpose in model.__dict__["bayesnorm_buffers"])
            held.append(Ref(model, _keep(model, f"held_mean_{number}", moments.mean)))
            held.append(Ref(model, _keep(model, f"held_var_{number}", moments.var)))
        step.held = tuple(held)
        warnings.warn(
            f"no moment rule for {step.operation} in {step.place}: the moments of its output were "
            "measured on example= and are held from now on",
            stacklevel=6,
        )


@torch.no_grad()
def remeasure(model: nn.Module, layers: Sequence[NormLayer], example: Example) -> None:
    """Measure held moments again where layers start afresh: each pass makes those of one more operation final."""
    program = layers[0].opening.runtime.program
    held = [_keyed(trace, lambda step: bool(step.held)) for trace in program.traces] if program is not None else []
    for _ in range(sum(map(len, held))):
        for known, trace in zip(held, measure(model, example), strict=True):
            found = _keyed(trace, lambda step: step.candidate is not None)
            for key, step in known.items():
                moments = found[key].candidate or ()
                for reference, value in zip(step.held, (t for m in moments for t in (m.mean, m.var)), strict=True):
                    reference.value.copy_(value)


def _keyed(trace: Trace, wanted: Callable[[Step], bool]) -> dict[tuple[str, str, int], Step]:
    """Steps by place, operation and how often it stood there before: the same before and after conversion.

    Only what computes with activations is counted: a converted network also draws its noise, at the same place.
    """
    counts: dict[tuple[str, str], int] = {}
    found = {}
    for step in trace.steps:
        if not step.active:
            continue
        key = (step.where, step.operation)
        counts[key] = counts.get(key, 0) + 1
        if wanted(step):
            found[(*key, counts[key])] = step
    return found
