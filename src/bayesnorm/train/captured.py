"""A trainer whose whole step is one CUDA graph: captured once, replayed, with nothing that waits for the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import noise
from .._objective import Terms
from ..data.base import Data
from ..data.batches import augmented
from ..data.stream import Purpose
from .config import Config
from .diagnosis import explain
from .flat import Flat
from .fused.large import large_filters
from .trainer import EXPLODED, Trainer
from .world import World

CHUNK = 200
"""Steps between two looks at the device: for signals, for progress, and for divergence."""
WARM_UP = 3
"""Steps before the capture, undone afterwards: libraries choose and allocate then."""


class CapturedTrainer(Trainer):
    """A trainer that takes many steps at a time, on the device alone.

    Order, the samples that only normalize, learning rates and KL factors of an epoch are put on the device before it
    begins. A step that would make the loss or the gradient infinite is not taken, nor is any after it; the host learns
    of it at the next look.

    Without CUDA the same step runs as it is written, which is how it is tested against :class:`Trainer`.
    """

    chunk = CHUNK

    def __init__(self, net: nn.Module, data: Data, config: Config, lr: float, world: World) -> None:
        super().__init__(net, data, config, lr, world)
        device, steps = data.device, len(self.batches)
        self.flat = Flat(net, self.optimizer, config)
        seed = torch.tensor(config.seed, dtype=torch.int64, device=device)
        self.key = noise.derive(seed, int(Purpose.AUGMENT))
        self.numbers = torch.arange(config.batch + self.batches.others, device=device)
        self.order = torch.zeros(len(data.train), dtype=torch.int64, device=device)
        self.others = torch.zeros(steps, self.batches.others, dtype=torch.int64, device=device)
        self.rates, self.factors = (torch.zeros(steps, device=device) for _ in range(2))
        self.place, self.count = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        self.failed = torch.full((), -1, dtype=torch.int64, device=device)
        self.totals = torch.zeros(len(self.sums), dtype=torch.float64, device=device)
        self.last = torch.zeros(2, dtype=torch.float64, device=device)
        self.graphs: dict[int, Callable[[], None]] = {}
        parts: tuple[Any, Any] = (self._inputs, self._terms)
        self.inputs, self.terms = (torch.compile(part, dynamic=False) if config.compile else part for part in parts)
        self.uploaded = False
        self.begun = 0

    def _wrapped(self) -> Callable[[Tensor], Tensor]:
        """The network as it is: what is compiled is the whole objective."""
        self.config, config = replace(self.config, compile=False), self.config
        try:
            return super()._wrapped()
        finally:
            self.config = config

    def begin(self) -> None:
        """Send off as many steps as there are until the next look."""
        self.net.train()
        if not self.uploaded:
            self._upload()
        self.begun, size = self.ahead()
        if size not in self.graphs:
            self.graphs[size] = self._captured(size)
        for _ in range(self.begun):
            self.graphs[size]()

    def release(self) -> None:
        """Give every parameter memory of its own again; the graphs, which know the old, go."""
        self.graphs.clear()
        self.flat.release()
        super().release()

    def step(self, stop: bool = False) -> bool:
        """As many steps as there are until the next look."""
        if not self.begun:
            self.begin()
        count, self.begun = self.begun, 0
        found = [self.failed.double().view(1), self.last, self.totals]
        failed, loss, norm, *totals = torch.cat(found).tolist()
        if failed >= 0:
            raise self._diverged(int(failed), loss, norm)
        self.batch += count
        self.sums = dict(zip(self.sums, totals, strict=True))
        return stop

    def ahead(self) -> tuple[int, int]:
        """Steps until the next look, and the size of their batches."""
        whole = len(self.data.train) // self.config.batch
        if self.batch >= whole:
            return 1, len(self.data.train) - whole * self.config.batch
        ahead = min(self.chunk - self.batch % self.chunk, whole - self.batch)
        every = self.config.checkpoint_steps
        return (ahead if every is None else min(ahead, every - self.step_count % every)), self.config.batch

    def _upload(self) -> None:
        """Everything that the steps of this epoch need."""
        first, steps = self.epoch * len(self.batches), len(self.batches)
        self.order.copy_(self.batches.permutation(self.epoch))
        for index in range(self.batch, steps) if self.batches.others else ():
            self.others[index] = self.batches.normalizing(self.epoch, index)
        self.rates.copy_(torch.tensor([self.schedule.rate(first + i) for i in range(steps)]))
        self.factors.copy_(torch.tensor([self.schedule.kl_factor(first + i) for i in range(steps)]))
        self.place.fill_(self.batch)
        self.count.fill_(self.step_count)
        self.totals.copy_(torch.tensor(list(self.sums.values()), dtype=torch.float64))
        self.uploaded = True

    def next_epoch(self) -> None:
        """Go on to the next epoch."""
        super().next_epoch()
        self.uploaded = False

    def load_counters(self, counters: dict[str, Any]) -> None:
        """Go to where a run was."""
        super().load_counters(counters)
        self.uploaded = False

    def _one_step(self, size: int) -> None:
        """One step on what is on the device, with nothing from the host."""
        images, targets = self.inputs(self.numbers[: size + self.batches.others])
        with large_filters(self.net, self.config, self.data.device):
            total, nll, kl = self.terms(images, targets, _at(self.factors, self.place))
        gradients = torch.autograd.grad(total, self.flat.parameters, allow_unused=True)
        with torch.no_grad():
            gradient = self.flat.gathered(gradients)
            norm = torch.linalg.vector_norm(gradient)
            good = (total + norm).isfinite() & (nll <= EXPLODED) & (self.failed < 0)
            self.flat.update_(gradient, norm, _at(self.rates, self.place), good)
            self._note(size, total, nll, kl, norm, good)

    def _inputs(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The batch at this place of the order, then those that only normalize, augmented; targets of the batch."""
        size = len(numbers) - self.batches.others
        chosen = self.order[self.place * self.config.batch + numbers[:size]]
        if self.batches.others:
            chosen = torch.cat([chosen, _at(self.others, self.place)])
        images, targets = augmented(self.data, self.data.train[chosen], noise.rows(self.key, self.count, numbers))
        return images, targets[:size]

    def _terms(self, images: Tensor, targets: Tensor, factor: Tensor) -> Terms:
        """The objective."""
        self.elbo.kl_factor = factor
        output = self._network(images)
        return self.elbo(output[: len(targets)] if self.batches.others else output, targets)

    def _note(self, size: int, loss: Tensor, nll: Tensor, kl: Tensor, norm: Tensor, good: Tensor) -> None:
        """Sums of the epoch; where and how it failed, the first time."""
        values = torch.stack([torch.ones_like(loss), loss, nll, kl]).double()
        self.totals += torch.where(good, size * values, 0.0)
        first = ~good & (self.failed < 0)
        self.last.copy_(torch.where(first, torch.stack([loss, norm]).double(), self.last))
        self.failed.copy_(torch.where(first, self.count, self.failed))
        self.count += 1
        self.place += 1

    def _diverged(self, step: int, loss: float, norm: float) -> Exception:
        """The state is that before the step, but for running averages: say what happened there."""
        self.batch = step - self.epoch * len(self.batches)
        images = self.batches(self.epoch, self.batch).images
        return explain(self.net, images, step, self.epoch, self.schedule.rate(step), loss, norm)

    def _captured(self, size: int) -> Callable[[], None]:
        """The step as a graph; without CUDA, or where the network does something that no graph can hold, as it is."""
        if self.data.device.type != "cuda":
            return lambda: self._one_step(size)
        before = [(tensor, tensor.clone()) for tensor in self._changing()]
        generator = torch.cuda.get_rng_state(self.data.device)
        try:
            return self._graph(size)
        except RuntimeError as error:
            if self.config.engine == "captured":
                raise ValueError(
                    f"--engine captured: the step cannot be captured ({error}); choose --engine plain"
                ) from error
            warnings.warn(f"no graph can hold the step, which is launched piece by piece: {error}", stacklevel=2)
            return lambda: self._one_step(size)
        finally:
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)
            torch.cuda.set_rng_state(generator, self.data.device)

    def _graph(self, size: int) -> Callable[[], None]:
        """Capture the step, after a few that let libraries choose and allocate."""
        place = self.place.clone()
        side = torch.cuda.Stream(self.data.device)
        side.wait_stream(torch.cuda.current_stream(self.data.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._one_step(size)
                self.place.copy_(place)
        torch.cuda.current_stream(self.data.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # torch keeps one cuBLAS workspace per stream and captures on one stream: graphs that run at the same time would
        # write into the same. Forgotten before and after, each graph gets one in its own memory.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(graph, stream=side):
                self._one_step(size)
        finally:
            torch._C._cuda_clearCublasWorkspaces()
        return graph.replay

    def _changing(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        ours = [self.place, self.count, self.failed, self.totals, self.last]
        return [*ours, *self.flat.state, *[buffer for buffer in self.net.buffers() if buffer is not None]]


def _at(values: Tensor, index: Tensor) -> Tensor:
    """One of the values; plain indexing by a number would read it on the host."""
    return values.index_select(0, index.view(1)).squeeze(0)
