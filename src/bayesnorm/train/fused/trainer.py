"""A trainer of chains of convolutions, whose step is a few dozen kernels made for them."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ... import noise
from ..._sampling import runtimes
from ..._scope import TRAINING
from ...data.base import Data
from ...layers import NormLayer
from ...norms import BatchNorm
from ..captured import CapturedTrainer
from ..config import Config
from ..rows import rows_of
from ..world import World
from .chain import NoChainError, chain_of, check_scales, convolutions, input_moments
from .dock import Bench, Dock
from .layout import layout_of
from .stack import Terms, sizes_fit

CHUNK = 2000
"""Steps between two looks: members of a fleet that were stopped at different steps are together again at the next."""


class FusedTrainer(CapturedTrainer):
    """A captured trainer that leaves autograd and the convolutions of libraries behind.

    Trainers at one dock take their steps together, with the model as one more axis of every kernel; each computes, to
    the last bit, what it computes alone.

    Arguments:
        net: a chain (:func:`chain_of`).
        dock: where others of its kind are; None: alone.
    """

    chunk = CHUNK

    def __init__(
        self, net: nn.Module, data: Data, config: Config, lr: float, world: World, dock: Dock | None = None
    ) -> None:
        super().__init__(net, data, replace(config, channels_last=True), lr, world)
        self.config = config
        self.chain = chain_of(net, data.image_size)
        self.convs = convolutions(net)
        self.layout = layout_of(self.chain, self.convs, self.flat.parameters, config.batch)
        rows = rows_of(net, self.flat.parameters, self.flat.row_factors, config.project)
        assert rows is not None
        self.rows = rows
        self.common = Terms(data, config.batch, len(self.batches), config.precision)
        self.form = (
            *(self.chain.links, self.chain.slope, self.chain.norm == "batch", self.chain.eps, self.chain.momentum),
            *(id(data.train.images), data.augment, config.batch, config.precision),
        )
        self.kind = (self.chain, config.momentum, config.clip, config.variance_factor, config.project)
        self.dock = Dock() if dock is None else dock
        self.dock.add(self)
        self.bench: Bench | None = None
        self.number = 0
        self.wanted = (0, 0)
        self.ready = torch.cuda.Event() if data.device.type == "cuda" else None

    def begin(self) -> None:
        """Ask for as many steps as there are until the next look."""
        self.net.train()
        if not self.uploaded:
            self._upload()
        self.begun, size = self.ahead()
        self.wanted = (self.begun, size)
        if self.ready is not None:
            self.ready.record()
        self.dock.ask(self)

    def step(self, stop: bool = False) -> bool:
        """As many steps as there are until the next look."""
        if not self.begun:
            self.begin()
        self.dock.flush()
        if self.bench is not None and self.bench.done is not None:
            torch.cuda.current_stream(self.data.device).wait_event(self.bench.done)
        count = self.begun
        wish = super().step(stop)
        for norm, _ in self._batch_norms():
            norm.num_batches_tracked += count
        return wish

    def wait(self, stream: torch.cuda.Stream) -> None:
        """Let a stream wait for all that was done before the steps were asked for."""
        if self.ready is not None:
            stream.wait_event(self.ready)

    def sit(self, bench: Bench, number: int) -> None:
        """Move everything that changes to a place in a stack."""
        check_scales(self.convs)  # also what a checkpoint brought
        self.bench, self.number = bench, number
        stack = bench.stack
        size = self.flat.values.numel()
        self.flat.move_(stack.values[number, :size], stack.momentum[number, :size])
        homes = {
            **{"order": stack.order, "rates": stack.rates, "factors": stack.kl_factors, "place": stack.place},
            **{"count": stack.count, "failed": stack.failed, "totals": stack.totals, "last": stack.last},
        }
        for name, home in homes.items():
            home[number].copy_(getattr(self, name))
            setattr(self, name, home[number])
        for runtime in runtimes(self.net):
            name = runtime.root.__dict__["bayesnorm_buffers"]["noise_step"]
            stack.noise_step[number].copy_(getattr(runtime.root, name))
            setattr(runtime.root, name, stack.noise_step[number])
        for layer, first in self._batch_norms():
            own = slice(first, first + layer.running_mean.numel())
            for i, name in enumerate(("running_mean", "running_var")):
                stack.running[number, i, own].copy_(getattr(layer, name))
                setattr(layer, name, stack.running[number, i, own])
        self._set_constants()

    def _batch_norms(self) -> list[tuple[BatchNorm, int]]:
        """Those of the network, with the first row of each layer."""
        norms = [conv.norm for conv in self.convs if isinstance(conv, NormLayer)]
        rows = self.layout.row_first
        return [(norm, row) for norm, row in zip(norms, rows, strict=False) if isinstance(norm, BatchNorm)]

    def _laid_out(self, images: Tensor) -> Tensor:
        """As its weights are."""
        return images.contiguous(memory_format=torch.channels_last)

    def _upload(self) -> None:
        super()._upload()
        if self.bench is not None:
            self._set_constants()

    def _set_constants(self) -> None:
        """What a checkpoint may have changed, though no step does."""
        assert self.bench is not None
        stack, number = self.bench.stack, self.number
        stack.key[number].copy_(self.key)
        for runtime in runtimes(self.net):
            stack.noise_key[number].copy_(noise.derive(runtime.buffer("noise_key"), TRAINING))
        layers = [conv for conv in self.convs if isinstance(conv, NormLayer)]
        if not layers:
            return
        norms, scales = [layer.norm for layer in layers], [layer.scale for layer in layers]
        for i, found in enumerate(([n.center for n in norms], [n.spread for n in norms])):
            stack.constants[number, i, : self.layout.channels].copy_(torch.cat(found))
        if self.chain.scale == "noise":
            for i, name in enumerate(("sigma_u", "sigma_v")):
                stack.sigmas[number, i, : self.layout.channels].copy_(
                    torch.cat([getattr(scale, name) for scale in scales])
                )
        if self.chain.norm == "analytic":
            channels = self.chain.links[0].inputs
            mean, var = input_moments(self.net, channels)
            stack.moments[number, 0, -channels:].copy_(mean)
            stack.moments[number, 1, -channels:].copy_(var + 1e-5)

    def release(self) -> None:
        """Give everything memory of its own again, in the order that it had."""
        super().release()
        self.dock.remove(self)
        self.bench = None
        for runtime in runtimes(self.net):
            name = runtime.root.__dict__["bayesnorm_buffers"]["noise_step"]
            setattr(runtime.root, name, getattr(runtime.root, name).clone())
        for norm, _ in self._batch_norms():
            norm.running_mean, norm.running_var = norm.running_mean.clone(), norm.running_var.clone()


def not_fused(net: nn.Module, data: Data, config: Config) -> str | None:
    """What keeps a step from being taken by these kernels, in words; None if nothing does."""
    if find_spec("triton") is None:
        return "Triton, which compiles its kernels, is not installed"
    if data.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "its kernels need CUDA"
    if config.precision == "fp32" and config.engine == "auto":
        return "in fp32 the convolutions of cuDNN are faster"
    if config.optimizer != "sgd":
        return f"there is no kernel for --optimizer {config.optimizer}"
    if data.per_pixel:
        return "there are no kernels for a class per pixel"
    try:
        chain = chain_of(net, data.image_size)
    except NoChainError as error:
        return f"the network is not one that it knows: {error}"
    if chain.norm == "batch" and min(link.pixels for link in chain.links) == 1 and _has_one(data, config.batch):
        return "batch norm has a batch of one sample for maps of one pixel, of which there is no variance"
    return None if sizes_fit(chain.links, config.batch) else "the batch is too large: choose a smaller --batch"


def _has_one(data: Data, batch: int) -> bool:
    """Whether a batch of an epoch has one sample."""
    return batch == 1 or len(data.train) % batch == 1
