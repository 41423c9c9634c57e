"""Where everything of a chain stands in the flat tensors of a stack: tables that the kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from ...layers import NormLayer
from ...scales import BayesScale, NoiseScale
from .chain import Chain, Link
from .tiles import weight_tile

ALIGNED = 16
LINE = 64
"""Numbers after which memory is as well aligned as at its beginning."""


@dataclass(frozen=True)
class PerRow:
    """A *row* is an output channel of some layer; those of all layers are counted on. Each tensor has one number a row.

    Arguments:
        w_at: place of its weight vector among the parameters.
        s_at: place of its scale; 0 if there is none.
        b_at: place of its shift; -1 if there is none.
        u_at: place of its variance; 0 if there is none.
        length: of its weight vector.
        inputs: channels that it sees.
        moments_at: place of the first one's moments.
        effective_at: place of its effective weight.
        parts_at: place of that one's gradient.
    """

    w_at: Tensor
    s_at: Tensor
    b_at: Tensor
    u_at: Tensor
    length: Tensor
    inputs: Tensor
    moments_at: Tensor
    effective_at: Tensor
    parts_at: Tensor


@dataclass(frozen=True)
class Behind:
    """What the way back through the moments of a hidden layer's output needs of the layer behind it.

    Arguments:
        w_first: place of its weight.
        rows_before: first row of the hidden layer.
        outputs: its channels.
        taps: pixels of its kernel.
        inputs: channels that it sees.
    """

    w_first: Tensor
    rows_before: Tensor
    outputs: Tensor
    taps: Tensor
    inputs: Tensor


@dataclass(frozen=True)
class Layout:
    """Places and sizes.

    Arguments:
        links: the layers as they are computed: the first is a 1x1 convolution over patches.
        parameters: numbers in all parameters, and a few more, so that those of every model are aligned alike.
        longest: numbers in the longest weight vector.
        channels: rows.
        pitch: rows in a table, a few more, so that its lines are aligned.
        patch: numbers in a patch.
        weights: numbers in all effective weights.
        parts: numbers in all parts of their gradients.
        row_first: first row of each layer.
        weight_first: place of the first effective weight of each layer.
        parts_first: place of the first part of each layer.
        rows: tables by row.
        behind: tables by hidden layer.
        hashes: hashed ids ``(2, pitch)`` of the draws: of the scale, and of the shift where there is one.
    """

    links: tuple[Link, ...]
    parameters: int
    longest: int
    channels: int
    pitch: int
    patch: int
    weights: int
    parts: int
    row_first: tuple[int, ...]
    weight_first: tuple[int, ...]
    parts_first: tuple[int, ...]
    rows: PerRow
    behind: Behind
    hashes: Tensor

    @property
    def table(self) -> int:
        """Lines of the table of moments: behind those of all rows stand those of the network's input."""
        return self.pitch + int(self.rows.inputs[0])


def layout_of(chain: Chain, convs: Sequence[nn.Conv2d], parameters: Sequence[Tensor], batch: int) -> Layout:
    """The layout of a chain.

    Arguments:
        chain: its form.
        convs: its convolutions.
        parameters: in the order in which they stand in a flat tensor.
        batch: samples of a step.
    """
    places, total = {}, 0
    for parameter in parameters:
        places[id(parameter)] = total
        total += parameter.numel()
    patch = max(ALIGNED, 1 << (chain.links[0].length - 1).bit_length())
    links = (_over_patches(chain.links[0], patch), *chain.links[1:])
    channels = sum(link.outputs for link in links)
    pitch = -(-channels // ALIGNED) * ALIGNED
    rows: list[tuple[int, ...]] = []
    row_first, weight_first, parts_first = [], [], []
    weight = part = 0
    for i, (link, conv) in enumerate(zip(links, convs, strict=True)):
        row_first.append(len(rows))
        weight_first.append(weight)
        parts_first.append(part)
        size = link.outputs * link.length
        split = weight_tile(link, batch).split if i < len(links) - 1 or chain.norm == "batch" else 1
        moments = row_first[i - 1] if i else pitch
        seen = (chain.links[i].length, chain.links[i].inputs, moments)
        for o in range(link.outputs):
            shift = o * link.length
            rows.append((*_places(conv, places, o), *seen, weight + shift, part + shift))
        weight, part = weight + size, part + split * size
    rows += [(0,) * len(fields(PerRow))] * (pitch - channels)
    device = parameters[0].device
    behind = [
        (places[id(conv.weight)], before, link.outputs, link.kernel[0] * link.kernel[1], link.inputs)
        for link, conv, before in zip(links[1:], convs[1:], row_first, strict=False)
    ]
    return Layout(
        *(
            links,
            -(-total // LINE) * LINE,
            max(link.length for link in chain.links),
            channels,
            pitch,
            patch,
            weight,
            part,
        ),
        *(tuple(row_first), tuple(weight_first), tuple(parts_first)),
        PerRow(*_columns(rows, device)),
        Behind(*_columns(behind, device)),
        _hashes(convs, pitch, device),
    )


def _over_patches(first: Link, patch: int) -> Link:
    height, width = first.out_height, first.out_width
    return Link(patch, height, width, first.outputs, height, width, (1, 1), 1, 0)


def _columns(rows: Sequence[tuple[int, ...]], device: torch.device) -> list[Tensor]:
    return [torch.tensor(column, dtype=torch.int32, device=device) for column in zip(*rows, strict=True)]


def _places(conv: nn.Conv2d, places: dict[int, int], o: int) -> tuple[int, int, int, int]:
    """Where weight vector, scale, shift and variance of an output channel stand."""
    weight = places[id(conv.weight)] + o * conv.weight[0].numel()
    if not isinstance(conv, NormLayer):
        return weight, 0, -1 if conv.bias is None else places[id(conv.bias)] + o, 0
    scale = conv.scale
    u = places[id(scale.u)] + o if isinstance(scale, BayesScale) else 0
    return weight, places[id(scale.s)] + o, places[id(scale.b)] + o, u


def _hashes(convs: Sequence[nn.Conv2d], pitch: int, device: torch.device) -> Tensor:
    found = torch.zeros(2, pitch, dtype=torch.int64, device=device)
    row = 0
    for conv in convs:
        if isinstance(conv, NormLayer) and isinstance(conv.scale, BayesScale | NoiseScale):
            columns = conv.columns.view(-1, conv.out_channels)
            found[: len(columns), row : row + conv.out_channels] = columns
        row += conv.out_channels
    return found
