"""What one call of a network has for its layers: statistics and noise, and where the noise comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from . import noise

TRAINING, MONTE_CARLO = 1, 2
"""Domains of the noise stream: steps of training and indices of Monte Carlo samples never meet."""


class Member(Protocol):
    """What the runtime has to know of a layer."""

    index: int

    @property
    def wants_moments(self) -> bool:
        """Whether its statistics come from the moment pass."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether its scale draws."""
        ...

    @property
    def columns(self) -> Tensor:
        """Its part of the noise stream."""
        ...

    @property
    def training(self) -> bool:
        """Its mode."""
        ...

    def factors(self, layers: Sequence[Any], drawn: Tensor) -> dict[int, Tensor]:
        """Drawn scales of those of these layers where they can be computed at once, by the layer's number."""
        ...


@dataclass
class Sampling:
    """Counters of Monte Carlo draws in evaluation mode.

    Arguments:
        key: key of the stream.
        index: Monte Carlo index of the next call, or of each draw of a batched call ``(K,)``.
        first: index of the first input of the batch within the whole input.
        shared: one draw for all inputs.
        held: the next call has the same index.
        expands: a batched call gets each input once, and the first random layer expands it to the draws.
        memory: statistics kept between calls, where the parameters are known not to change.
        given: standard normal draws by layer, in place of those of the stream; other layers draw nothing.
        antithetic: every second draw is the one before it with the opposite sign.
        repeats: whether a backward pass may repeat such a call, so that its draws are remembered.
    """

    key: Tensor
    index: Tensor
    first: int = 0
    shared: bool = False
    held: bool = False
    expands: bool = False
    memory: dict[int, dict[int, tuple[Tensor, Tensor]]] | None = None
    given: dict[int, Tensor] | None = None
    antithetic: bool = False
    repeats: bool = True

    def rows(self, batch: int) -> Tensor:
        """Row hashes of a batch, draws before inputs."""
        if self.index.dim() == 1 and not self.expands:
            batch //= len(self.index)
        sample = torch.arange(batch, device=self.key.device) + self.first
        if self.shared:
            sample = torch.zeros_like(sample)
        index = self.index // 2 if self.antithetic else self.index
        if index.dim() == 0:
            return noise.rows(self.key, index, sample)
        return noise.rows(self.key, index.repeat_interleave(batch), sample.repeat(len(index)))

    def signs(self, rows: int) -> Tensor | None:
        """Sign ``(rows, 1)`` of the draws of a batch, if not all are positive."""
        if not self.antithetic:
            return None
        signs = (1 - 2 * (self.index % 2)).view(-1, 1)
        return signs.repeat_interleave(rows // len(signs), 0).float()


@dataclass(frozen=True)
class Noise:
    """Where the draws of one call come from.

    Arguments:
        rows: hash of each sample.
        signs: of the draws of each row, if some are negative.
        sampling: the Monte Carlo draw in evaluation mode; None in training.
    """

    rows: Tensor
    signs: Tensor | None = None
    sampling: Sampling | None = None

    def normal(self, columns: Tensor) -> Tensor:
        """Standard normal draws ``(rows, columns)``."""
        drawn = noise.normal(self.rows, columns)
        return drawn if self.signs is None else drawn * self.signs

    def serves(self, layer: Member) -> bool:
        """Whether the scale of a layer is drawn."""
        if self.sampling is None:
            return layer.training
        return self.sampling.given is None or layer.index in self.sampling.given


@dataclass
class Scope:
    """Statistics and noise of one call.

    ``noise`` is None where nothing is drawn. ``expand``: the first random layer is to expand its batch to the draws.
    ``factors``: drawn scales, where they are known already.
    """

    statistics: dict[int, tuple[Tensor, Tensor]]
    noise: Noise | None = None
    draws: dict[int, Tensor] = field(default_factory=dict)
    expand: bool = False
    factors: dict[int, Tensor] = field(default_factory=dict)

    def draws_for(self, layer: Member) -> bool:
        """Whether the scale of a layer is drawn in this call."""
        return layer.is_random and self.noise is not None and self.noise.serves(layer)

    def draw(self, layer: Member, batch: int) -> Tensor:
        """Standard normal draws ``(rows, columns)`` of a layer, also for a batch axis that grew or shrank."""
        drawn = self.draws.get(layer.index)
        if drawn is None:
            assert self.noise is not None
            drawn = self.noise.normal(layer.columns)
        return self.matched(drawn, batch)

    def matched(self, drawn: Tensor, batch: int) -> Tensor:
        """One row for each sample of a batch axis that may have grown or shrunk; what a sample makes stays together."""
        rows = drawn.size(0)
        if batch == rows or self.expand:
            return drawn
        if batch % rows == 0:
            return drawn.repeat_interleave(batch // rows, 0)
        if rows % batch == 0:
            return drawn[:: rows // batch]
        raise ValueError(
            f"a batch of {batch} in a network that was called with {rows}: noise is drawn per sample, so the batch "
            "axis must stay first and keep its size, a multiple or a divisor of it"
        )


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
