"""Opens and closes the scope of a call: the outermost module called computes what all layers inside it need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn

from . import noise
from ._scope import TRAINING, Member, Sampling, Scope
from .moments.core import is_eager, without_autocast
from .moments.program import Plan, Program


class Runtime:
    """Shared by all layers of a converted network; between calls it holds nothing that depends on parameters.

    The key and the step counter of the noise are buffers of the root (``noise_key``, ``noise_step``), so that they are
    in its state dict and move with it.

    Arguments:
        root: the converted network.
        layers: its normalized layers.
        program: its moment pass, if some layer uses it.
        expands: whether all that stands before the first random layer can be computed once for many draws.
        activations: numbers in one input, and in the activations that a forward pass holds at a time, when traced.

    ``apart`` lets every layer open its own scope, for procedures that change parameters layer by layer. ``samples``
    numbers the samples of the batch where their place in it does not: the parts of a batch over several processes.
    """

    def __init__(
        self,
        root: nn.Module,
        layers: Sequence[Member],
        program: Program | None,
        expands: bool,
        activations: tuple[int, int] | None,
    ) -> None:
        self.root = root
        self.layers = list(layers)
        self.program = program
        self.expands = expands
        self.activations = activations
        self.apart = False
        self.sampling: Sampling | None = None
        self.samples: Tensor | None = None
        self._close()
        self.steps: dict[int, Tensor] = {}

    def _close(self) -> None:
        self.scope: Scope | None = None
        self.pending: tuple[Opening, Tensor] | None = None
        self.opener: nn.Module | None = None
        self.frame: FrameType | None = None

    def __getstate__(self) -> dict[str, Any]:
        closed = dict.fromkeys(("frame", "scope", "pending", "opener", "sampling", "samples"))
        return {**vars(self), **closed, "steps": {}, "apart": False}

    def buffer(self, purpose: str) -> Tensor:
        """A buffer that the conversion gave to the root."""
        value: Tensor = getattr(self.root, self.root.__dict__["bayesnorm_buffers"][purpose])
        return value

    def is_open(self) -> bool:
        """Whether the module that opened the scope is still running; hooks do not see it end by KeyboardInterrupt."""
        if self.opener is None or torch.compiler.is_compiling():
            return self.opener is not None
        if self.frame is not None:
            try:
                self.frame.clear()
            except RuntimeError:  # what an executing frame raises
                return True
        self._close()
        return False

    def open(self, opening: Opening, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
        """Compute what the layers of ``opening`` need for one call with these arguments."""
        scope = Scope(self.statistics(opening))
        drawing = self.sampling is not None
        random = [layer for layer in opening.layers if layer.is_random and (layer.training or drawing)]
        if random:
            self._set_rows(scope, first_tensor(args, kwargs))
            if self.sampling is not None and self.sampling.given is not None:
                scope.draws = self.sampling.given
                return scope
            drawn = scope.normal(torch.cat([layer.columns for layer in random]))
            parts = drawn.split([layer.columns.numel() for layer in random], dim=1)
            scope.draws = {layer.index: part for layer, part in zip(random, parts, strict=True)}
            if not torch.compiler.is_compiling():  # a compiler does better with each layer on its own
                with without_autocast(opening.device_type()), _unseen_by_checkpoints():
                    scope.factors = random[0].factors(random, drawn)
        return scope

    def draws_for(self, layer: Member) -> bool:
        """Whether the scale of a layer is drawn in this call."""
        if self.sampling is None:
            return layer.training
        return self.sampling.given is None or layer.index in self.sampling.given

    def statistics(self, opening: Opening) -> dict[int, tuple[Tensor, Tensor]]:
        """Input moments of the layers of ``opening``, from the parameters as they are."""
        if self.program is None or opening.plan is None:
            return {}
        memory = self.sampling.memory if self.sampling is not None else None
        if memory is not None and id(opening) in memory:
            return memory[id(opening)]
        with without_autocast(opening.device_type()), _unseen_by_checkpoints():
            found = self.program.run(opening.plan)
        statistics = dict(zip(opening.wanting, found, strict=True))
        if memory is not None:
            memory[id(opening)] = statistics
        return statistics

    def _set_rows(self, scope: Scope, x: Tensor) -> None:
        if self.sampling is not None:
            scope.rows = rows = self.sampling.rows(x.size(0))
            scope.signs = self.sampling.signs(len(rows))
            scope.expand = self.sampling.expands
            if self.sampling.index.dim() == 0:
                self.sampling.index = self.sampling.index + 1
            return
        key, step = self.buffer("noise_key"), self.buffer("noise_step")
        sample = self.samples
        if sample is None:
            sample = torch.arange(x.size(0), device=key.device)
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                sample = sample + torch.distributed.get_rank() * x.size(0)
        with torch.no_grad():
            if _recomputing():
                scope.step = self.steps.get(x.data_ptr(), step - 1)
            else:
                scope.step = step.clone()
                step.add_(1)
        scope.rows = noise.rows(noise.derive(key, TRAINING), scope.step, sample)

    def note(self, x: Tensor) -> None:
        """Remember the step at which this tensor came in: all that a checkpoint hands back is the tensor."""
        if self.scope is None or self.scope.step is None or torch.compiler.is_compiling() or _recomputing():
            return
        if len(self.steps) >= 4096:
            self.steps.pop(next(iter(self.steps)))
        self.steps.pop(x.data_ptr(), None)
        self.steps[x.data_ptr()] = self.scope.step


@dataclass
class Opening:
    """Hooks of one module: the outermost module called opens the scope for the layers inside it."""

    runtime: Runtime
    layers: list[Any]
    plan: Plan | None = None
    wanting: list[int] = field(default_factory=list)

    def prepare(self) -> None:
        """Plan the moment pass of the layers inside."""
        program = self.runtime.program
        if program is not None:
            wanting = [layer for layer in self.layers if layer.wants_moments]
            self.plan = program.plan(wanting) if wanting else None
            self.wanting = [cast(Member, layer).index for layer in self.plan.layers] if self.plan else []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook."""
        runtime = self.runtime
        if runtime.apart:
            return
        if runtime.opener is module or not runtime.is_open():
            runtime.opener = module
            if torch.compiler.is_compiling():
                # Hooks may be compiled apart from the forward: the first layer computes the scope in the forward's
                # graph.
                runtime.scope, runtime.pending = None, (self, first_tensor(args, kwargs))
                return
            runtime.scope = runtime.open(self, args, kwargs)
            runtime.frame = sys._getframe(1)
        x = _first((*args, *kwargs.values()))
        if x is not None:
            runtime.note(x)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Forward hook, called on exceptions too."""
        if self.runtime.opener is module:
            self.runtime._close()

    def current(self, x: Tensor) -> Scope:
        """The open scope, or one for this call alone."""
        runtime = self.runtime
        if not runtime.is_open():
            return runtime.open(self, (x,), {})
        if runtime.scope is None:
            assert runtime.pending is not None
            opening, batch = runtime.pending
            runtime.scope = runtime.open(opening, (batch,), {})
        runtime.note(x)
        return runtime.scope

    def device_type(self) -> str:
        """Device of the layers."""
        weight: Tensor = self.layers[0].scale.s
        return weight.device.type


def first_tensor(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """The batch: the first tensor among the arguments, also inside tuples, lists and dicts."""
    found = _first((*args, *kwargs.values()))
    if found is None:
        raise ValueError("no tensor among the arguments of the call: pass the batch as one, so that noise can be drawn")
    return found


def _first(values: Sequence[Any]) -> Tensor | None:
    for value in values:
        inner = tuple(value.values()) if isinstance(value, dict) else value
        found = _first(inner) if isinstance(inner, (tuple, list)) else inner
        if isinstance(found, Tensor) and found.dim() > 0:
            return found
    return None


def _recomputing() -> bool:
    """Whether this call repeats a forward inside a backward pass (activation checkpointing)."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _unseen_by_checkpoints() -> AbstractContextManager[object]:
    """Hides what the pass saves: a checkpointed block, recomputed alone, runs a pass that its first run did not."""
    if not is_eager():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
