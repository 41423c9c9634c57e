"""The tensors of several chains of one form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import noise
from ...data.base import Data
from ..rows import Rows
from .chain import Chain, Link
from .layout import LINE, Layout
from .tiles import backward_parts, forward_parts

TYPES = {"bf16": torch.bfloat16, "tf32": torch.float32, "fp32": torch.float32}


@dataclass(frozen=True)
class Terms:
    """What all members of a stack have in common, besides their convolutions.

    Arguments:
        data: what they learn.
        batch: samples per step.
        steps: per epoch.
        precision: of the convolutions.
    """

    data: Data
    batch: int
    steps: int
    precision: str


@dataclass(frozen=True)
class Kind:
    """Neighbours in a stack that are alike in everything but numbers: the kernels of their parameters are the same.

    Arguments:
        chain: their form.
        layout: where each parameter stands.
        rows: how the update cuts them.
        momentum: of the optimizer.
        clip: largest norm of a gradient.
        first: number of the first of them in the stack.
        models: how many.
    """

    chain: Chain
    layout: Layout
    rows: Rows
    momentum: float
    clip: float | None
    first: int
    models: int


class Stack:
    """State and work space of chains of the same convolutions; each tensor has the model as its first axis.

    What is computed from a map to the next is the same for all of them, whether or not they normalize alike; only batch
    normalization does not mix with others. ``chain`` and ``layout`` are those of the first, for what they share.

    Arguments:
        kinds: the models, one after the other.
        terms: what they have in common.
    """

    def __init__(self, kinds: Sequence[Kind], terms: Terms) -> None:
        self.kinds, self.terms, self.models = tuple(kinds), terms, sum(kind.models for kind in kinds)
        self.chain, self.layout = chain, layout = kinds[0].chain, kinds[0].layout
        self.parameters = max(kind.layout.parameters for kind in kinds)
        models = self.models
        self.device = device = terms.data.device
        number: Any = {"device": device}
        channels, self.table = layout.pitch, layout.table
        batch, steps, count = terms.batch, terms.steps, len(terms.data.train)
        many = (models, self.parameters)
        self.values, self.momentum, self.gradient = (torch.zeros(many, **number) for _ in range(3))
        self.order = torch.zeros(models, count, dtype=torch.int64, **number)
        self.rates, self.kl_factors = (torch.zeros(models, steps, **number) for _ in range(2))
        self.place, self.count, self.noise_step, self.noise_key, self.key = (
            torch.zeros(models, dtype=torch.int64, **number) for _ in range(5)
        )
        self.failed = torch.full((models,), -1, dtype=torch.int64, **number)
        self.totals = torch.zeros(models, 4, dtype=torch.float64, **number)
        self.last = torch.zeros(models, 2, dtype=torch.float64, **number)
        self.active = torch.ones(models, dtype=torch.int32, **number)
        self.good = torch.zeros(models, dtype=torch.int32, **number)
        self.clip_scale, self.rate = (torch.zeros(models, **number) for _ in range(2))
        self.constants = torch.zeros(models, 2, channels, **number)
        self.sigmas = torch.zeros(models, 2, channels, **number)
        self.moments = torch.zeros(models, 2, self.table, **number)
        kind = TYPES[terms.precision]
        first, *later = layout.links
        self.patches = _guarded((models, batch, first.pixels, layout.patch), kind, device, _reach(first))
        self.targets = torch.zeros(models, batch, dtype=torch.int64, **number)
        self.effective = _guarded((models, layout.weights), kind, device, WIDEST * layout.longest)
        self.statistics = torch.zeros(models, channels, 4, **number)
        self.inner = torch.zeros(models, channels, **number)
        self.sums = torch.zeros(models, channels, 4, **number)
        self.factor, self.summand, self.first, self.second, self.for_factor, self.for_summand = (
            torch.zeros(models, batch, channels, **number) for _ in range(6)
        )
        batches = chain.norm == "batch"
        answers = layout.links if batches else layout.links[:-1]
        self.gradients, self.responses = (
            [_guarded((models, batch, link.pixels, link.outputs), kind, device, _reach(link)) for link in links]
            for links in (answers, answers if batches else ())
        )
        self.forward_sums = [
            torch.zeros(models, batch, forward_parts(link), 2, link.outputs, **number) for link in answers if batches
        ]
        self.backward_sums = [
            torch.zeros(models, batch, backward_parts(link), 2, link.inputs, **number) for link in later
        ]
        self.outputs = [
            _guarded((models, batch, _framed(link), link.inputs), kind, device, _reach(link)) for link in later
        ]
        self.pixel_sums, self.pixel_squares = (
            torch.zeros(models, batch if batches else 0, channels, **number) for _ in range(2)
        )
        self.batch, self.running = (torch.zeros(models, 2, channels, **number) for _ in range(2))
        self.pooled = torch.zeros(models, batch, chain.links[-1].inputs, **number)
        self.losses = torch.zeros(models, batch, **number)
        self.divergences = torch.zeros(models, channels, **number)
        self.through = torch.zeros(models, channels, 2, **number)
        self.squares = torch.zeros(models, channels + self.table, **number)
        self.parts = torch.zeros(models, layout.parts, **number)
        self.draws = noise.columns(0, 4, device=device)
        cuda = device.type == "cuda"
        self.beside, self.aside = (torch.cuda.Stream(device) if cuda else None for _ in range(2))
        self.streams = [torch.cuda.Stream(device) for _ in self.kinds[1:]] if cuda else []

    def frame(self, i: int) -> int:
        """Pixels around the output of a layer, which the next one pads; they are zeros, and nobody writes there."""
        after = self.layout.links[i + 1 :]
        return after[0].padding if after else 0

    @property
    def changing(self) -> list[Tensor]:
        """Every tensor that a step changes and the next one reads."""
        return [
            *(self.values, self.momentum, self.place, self.count, self.noise_step),
            *(self.failed, self.totals, self.last, self.running),
        ]


WIDEST = 64
"""Channels by which a tile is wider than the channels that there are, at most."""
TALLEST = 128
"""Likewise, rows of a tile."""


def _framed(link: Link) -> int:
    """Pixels of a convolution's input, with those of the padding around it."""
    return (link.height + 2 * link.padding) * (link.width + 2 * link.padding)


def _reach(link: Link) -> int:
    """Numbers by which a tile of its input, its output or their gradients reaches beyond them, at most."""
    line = max(link.width + 2 * link.padding, link.out_width)
    return line * ((link.kernel[0] + 2) * max(link.inputs, link.outputs) + TALLEST)


def _guarded(shape: tuple[int, ...], kind: torch.dtype, device: torch.device, reach: int) -> Tensor:
    """Zeros, with memory on both sides that belongs to nobody.

    A product reads by asynchronous copies, which look up their address even where a mask says to copy nothing.
    """
    reach, size = -(-reach // LINE) * LINE, math.prod(shape)
    return torch.zeros(reach + size + reach, dtype=kind, device=device)[reach : reach + size].view(shape)


def sizes_fit(links: Sequence[Link], batch: int) -> bool:
    """Whether every tensor of one model can be addressed by 32 bits."""
    largest = max(max(link.pixels * link.outputs, _framed(link) * link.inputs) for link in links)
    return batch * largest < 2**31
