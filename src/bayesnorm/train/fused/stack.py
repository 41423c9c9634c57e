"""The tensors of several chains of one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ... import noise
from ...data.base import Data
from ..rows import Rows
from .chain import Chain, Link
from .layout import Layout

TYPES = {"bf16": torch.bfloat16, "tf32": torch.float32, "fp32": torch.float32}


@dataclass(frozen=True)
class Terms:
    """What all members of a stack have in common, besides their chain.

    Arguments:
        data: what they learn.
        batch: samples per step.
        steps: per epoch.
        precision: of the convolutions.
        momentum: of the optimizer.
        clip: largest norm of a gradient.
    """

    data: Data
    batch: int
    steps: int
    precision: str
    momentum: float
    clip: float | None


class Stack:
    """State and work space of ``models`` chains; each tensor has the model as its first axis.

    Arguments:
        chain: their form.
        layout: where each parameter stands.
        rows: how the update cuts them.
        terms: what they have in common.
        models: how many.
    """

    def __init__(self, chain: Chain, layout: Layout, rows: Rows, terms: Terms, models: int) -> None:
        self.chain, self.layout, self.rows, self.terms, self.models = chain, layout, rows, terms, models
        self.device = device = terms.data.device
        number: Any = {"device": device}
        channels, self.table = layout.pitch, layout.table
        batch, steps, count = terms.batch, terms.steps, len(terms.data.train)
        many = (models, layout.parameters)
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
        self.constants = torch.zeros(models, 3, channels, **number)
        self.sigmas = torch.zeros(models, 2, channels, **number)
        self.moments = torch.zeros(models, 2, self.table, **number)
        kind = TYPES[terms.precision]
        self.patches = torch.zeros(models, batch, chain.links[0].pixels, layout.patch, dtype=kind, **number)
        self.targets = torch.zeros(models, batch, dtype=torch.int64, **number)
        self.effective = torch.zeros(models, layout.weights, dtype=kind, **number)
        self.statistics = torch.zeros(models, channels, 4, **number)
        self.inner = torch.zeros(models, channels, **number)
        self.sums = torch.zeros(models, channels, 4, **number)
        self.factor, self.summand, self.first, self.second, self.for_factor, self.for_summand = (
            torch.zeros(models, batch, channels, **number) for _ in range(6)
        )
        batches = chain.norm == "batch"
        self.responses, self.gradients, self.outputs = (
            [torch.zeros(models, batch, link.pixels, link.outputs, dtype=kind, **number) for link in links]
            for links in [chain.links if batches else chain.links[:-1]] * 2 + [chain.links[:-1]]
        )
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
        self.beside = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def changing(self) -> list[Tensor]:
        """Every tensor that a step changes and the next one reads."""
        return [
            *(self.values, self.momentum, self.place, self.count, self.noise_step),
            *(self.failed, self.totals, self.last, self.running),
        ]


def sizes_fit(links: Sequence[Link], batch: int) -> bool:
    """Whether every tensor of one model can be addressed by 32 bits."""
    largest = max(max(link.pixels * link.outputs, link.height * link.width * link.inputs) for link in links)
    return batch * largest < 2**31
