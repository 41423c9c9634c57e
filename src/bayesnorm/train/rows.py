"""One kernel for the whole update: momentum, step, projection and bounds, a row of parameters at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._project import refuse_shared
from ..layers import norm_layers
from ..scales import BayesScale
from ..scales.bayes import U_MAX, U_MIN

LONGEST = 1024
"""Parameters of a row that belong to no weight vector."""


@dataclass(frozen=True)
class Rows:
    """How a flat tensor of parameters falls into rows, each updated on its own.

    Arguments:
        start: place of the first parameter of each row.
        length: parameters in it.
        factor: on the learning rate.
        low: least value of a parameter.
        high: largest value.
        project: 1 where the row is a weight vector that is divided by its length, else 0.
        longest: the largest length.
    """

    start: Tensor
    length: Tensor
    factor: Tensor
    low: Tensor
    high: Tensor
    project: Tensor
    longest: int


def rows_of(net: nn.Module, parameters: Sequence[Tensor], factors: Sequence[float], project: bool) -> Rows | None:
    """The rows of the parameters, which stand one after the other; None if some weight vector is not in one piece.

    Arguments:
        net: whose layers say what is projected and what has bounds.
        parameters: in the order of the flat tensor.
        factors: on the learning rate of each.
        project: whether weight vectors are projected.
    """
    if project:
        refuse_shared(net, norm_layers(net))
    vectors: dict[int, int] = {}
    bounds: dict[int, tuple[float, float]] = {}
    for layer in norm_layers(net).values():
        if project and layer.weight_vectors() is not None:
            weight = layer.weight
            if layer.geometry.transposed or not isinstance(weight, nn.Parameter):
                return None
            vectors[id(weight)] = weight.size(0)
        if isinstance(layer.scale, BayesScale):
            bounds[id(layer.scale.s)] = (layer.scale.spec.floor, math.inf)
            bounds |= {id(u): (U_MIN, U_MAX) for u in layer.scale.variance_parameters()}
    table: list[tuple[float, ...]] = []
    first = 0
    for parameter, factor in zip(parameters, factors, strict=True):
        size, count = parameter.numel(), vectors.get(id(parameter))
        step = size // count if count else LONGEST
        low, high = bounds.get(id(parameter), (-math.inf, math.inf))
        kind = (factor, low, high, float(count is not None))
        table += [(first + at, min(step, size - at), *kind) for at in range(0, size, step)]
        first += size
    columns: list[Any] = list(zip(*table, strict=True))
    device = parameters[0].device
    kinds = (torch.int64, torch.int32, torch.float32, torch.float32, torch.float32, torch.int32)
    tensors = [torch.tensor(c, dtype=k, device=device) for c, k in zip(columns, kinds, strict=True)]
    found: list[Any] = [*tensors, max(columns[1])]
    return Rows(*found)


def update_(
    rows: Rows, values: Tensor, momentum: Tensor, gradient: Tensor, rate: Tensor, good: Tensor, scale: Tensor, mu: float
) -> None:
    """Nesterov's step on the rows, in place.

    Arguments:
        values: all parameters.
        momentum: of all parameters.
        gradient: of all parameters.
        rate: learning rate.
        good: whether the step is taken.
        scale: factor on the gradient.
        mu: factor on the momentum.
    """
    from .fused._update import update_kernel

    update_kernel[(len(rows.start),)](
        *(values, momentum, gradient, rate, good, scale),
        *(rows.start, rows.length, rows.factor, rows.low, rows.high, rows.project),
        *(mu, 0, 0),
        BLOCK=1 << (rows.longest - 1).bit_length(),
        num_warps=8,
    )
