"""Opens and closes the scope of a call: the outermost module called computes what all layers inside it need."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn

from . import noise
from ._repeats import Repeats, repeating
from ._scope import TRAINING, Member, Noise, Sampling, Scope, first_tensor
from .moments.core import is_eager, without_autocast
from .moments.program import Plan, Program


class Call:
    """The call that is running."""

    def __init__(self) -> None:
        self.close()

    def close(self) -> None:
        """No module runs."""
        self.scope: Scope | None = None
        self.pending: tuple[Opening, Tensor] | None = None
        self.opener: nn.Module | None = None
        self.frame: FrameType | None = None

    def is_open(self) -> bool:
        """Whether the module that opened the scope is still running; hooks do not see it end by KeyboardInterrupt."""
        if self.opener is None or torch.compiler.is_compiling():
            return self.opener is not None
        if self.frame is not None:
            try:
                self.frame.clear()
            except RuntimeError:  # what an executing frame raises
                return True
        self.close()
        return False


class Runtime:
    """Shared by all layers of a converted network; between calls it holds nothing that depends on parameters.

    The key and the step counter of the noise are buffers of the root (``noise_key``, ``noise_step``), so that they are
    in its state dict and move with it.

    Arguments:
        root: the converted network.
        layers: its normalized layers.
        program: its moment pass, if some layer uses it.
        expands: whether all that stands before the first random layer can be computed once for many draws.
        activations: numbers in one input, and in the activations that a forward pass holds at a time.

    ``apart`` lets every layer open its own scope, for procedures that change parameters layer by layer. Calls and what
    they draw are the thread's own, so that several may predict at a time; compiled code, which cannot write such
    values, has one call for all.
    """

    def __init__(
        self,
        root: nn.Module,
        layers: Sequence[Member],
        program: Program | None,
        expands: bool,
        activations: tuple[int, int],
    ) -> None:
        self.root = root
        self.layers = list(layers)
        self.program = program
        self.expands = expands
        self.activations = activations
        self._begin()

    def _begin(self) -> None:
        self.apart = False
        self.own = threading.local()
        self.compiled = Call()
        self.repeats = Repeats()

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("root", "layers", "program", "expands", "activations")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @property
    def call(self) -> Call:
        """The one that is running."""
        if torch.compiler.is_compiling():
            return self.compiled
        found: Call | None = getattr(self.own, "call", None)
        if found is None:
            found = self.own.call = Call()
        return found

    @property
    def sampling(self) -> Sampling | None:
        """What the calls draw in evaluation mode, if anything."""
        return getattr(self.own, "sampling", None)

    @sampling.setter
    def sampling(self, value: Sampling | None) -> None:
        self.own.sampling = value

    @property
    def samples(self) -> Tensor | None:
        """Numbers of the samples of the batch, where their place in it is another: a part of a batch of processes."""
        return getattr(self.own, "samples", None)

    @samples.setter
    def samples(self, value: Tensor | None) -> None:
        self.own.samples = value

    def buffer(self, purpose: str) -> Tensor:
        """A buffer that the conversion gave to the root."""
        value: Tensor = getattr(self.root, self.root.__dict__["bayesnorm_buffers"][purpose])
        return value

    def open(self, opening: Opening, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
        """Compute what the layers of ``opening`` need for one call with these arguments."""
        scope = Scope(self.statistics(opening))
        before = self.repeats.find(opening, args, kwargs) if repeating() else None
        sampling = self.sampling if before is None else before.sampling
        random = [layer for layer in opening.layers if layer.is_random and (layer.training or sampling is not None)]
        if random:
            x = first_tensor(args, kwargs)
            scope.noise = before if before is not None else self._noise(x, sampling)
            scope.expand = sampling is not None and sampling.expands
            if not torch.compiler.is_compiling() and not repeating() and (sampling is None or sampling.repeats):
                self.repeats.add(opening, x, scope.noise)
            if sampling is not None and sampling.given is not None:
                scope.draws = sampling.given
                return scope
            drawn = scope.noise.normal(torch.cat([layer.columns for layer in random]))
            parts = drawn.split([layer.columns.numel() for layer in random], dim=1)
            scope.draws = {layer.index: part for layer, part in zip(random, parts, strict=True)}
            if not torch.compiler.is_compiling():  # a compiler does better with each layer on its own
                with without_autocast(opening.device_type()), _unseen_by_checkpoints():
                    scope.factors = random[0].factors(random, drawn)
        return scope

    def statistics(self, opening: Opening) -> dict[int, tuple[Tensor, Tensor]]:
        """Input moments of the layers of ``opening``, from the parameters as they are."""
        if self.program is None or opening.plan is None:
            return {}
        sampling = self.sampling
        memory = sampling.memory if sampling is not None else None
        if memory is not None and id(opening) in memory:
            return memory[id(opening)]
        with without_autocast(opening.device_type()), _unseen_by_checkpoints():
            found = self.program.run(opening.plan)
        statistics = dict(zip(opening.wanting, found, strict=True))
        if memory is not None:
            memory[id(opening)] = statistics
        return statistics

    def _noise(self, x: Tensor, sampling: Sampling | None) -> Noise:
        """That of the next call, with this batch."""
        if sampling is not None:
            rows = sampling.rows(x.size(0))
            found = Noise(rows, sampling.signs(len(rows)), sampling)
            if sampling.index.dim() == 0 and not sampling.held:
                sampling.index = sampling.index + 1
            return found
        key, step = self.buffer("noise_key"), self.buffer("noise_step")
        sample = self.samples
        if sample is None:
            sample = torch.arange(x.size(0), device=key.device)
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                sample = sample + torch.distributed.get_rank() * x.size(0)
        with torch.no_grad():
            now = step.clone()
            step.add_(1)
        return Noise(noise.rows(noise.derive(key, TRAINING), now, sample))


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
        runtime, call = self.runtime, self.runtime.call
        if runtime.apart or (call.opener is not module and call.is_open()):
            return
        if getattr(module, "_is_replica", False) and (self.plan is not None or any(m.is_random for m in self.layers)):
            raise ValueError(
                "nn.DataParallel copies a network whose layers share one noise and one moment pass: use "
                "DistributedDataParallel"
            )
        call.opener = module
        if torch.compiler.is_compiling():
            # Hooks may be compiled apart from the forward: the first layer computes the scope in the forward's graph.
            call.scope, call.pending = None, (self, first_tensor(args, kwargs))
            return
        call.scope = runtime.open(self, args, kwargs)
        call.frame = sys._getframe(1)

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Forward hook, called on exceptions too."""
        if self.runtime.call.opener is module:
            self.runtime.call.close()

    def current(self, x: Tensor) -> Scope:
        """The open scope, or one for this call alone."""
        runtime, call = self.runtime, self.runtime.call
        if not call.is_open():
            return runtime.open(self, (x,), {})
        if call.scope is None:
            assert call.pending is not None
            opening, batch = call.pending
            call.scope = runtime.open(opening, (batch,), {})
        return call.scope

    def device_type(self) -> str:
        """Device of the layers."""
        weight: Tensor = self.layers[0].scale.s
        return weight.device.type


def _unseen_by_checkpoints() -> AbstractContextManager[object]:
    """Hides what the pass saves: a checkpointed block, recomputed alone, runs a pass that its first run did not."""
    if not is_eager():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
