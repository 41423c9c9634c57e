"""How the weight of a layer is laid out: which numbers belong to one output channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..moments import linear


@dataclass(frozen=True)
class Geometry:
    """Layout of a convolution or linear layer."""

    groups: int = 1
    transposed: bool = False
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()

    def shares_vectors(self, other: Geometry) -> bool:
        """Whether the same numbers of a weight belong to one output channel in both layouts."""
        groups = self.groups == other.groups or not self.transposed
        return self.transposed == other.transposed and groups

    def moments(self, weight: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the response, from those of the input channels."""
        return linear.linear_moments(
            weight,
            mean,
            var,
            groups=self.groups,
            transposed=self.transposed,
            stride=self.stride or 1,
            dilation=self.dilation or 1,
        )

    def filters(self, weight: Tensor) -> Tensor:
        """One weight vector per output channel, as rows."""
        return linear.filters(weight, self.groups, self.transposed)

    def scaled(self, weight: Tensor, factor: Tensor) -> Tensor:
        """The weight with each output channel's vector multiplied by its factor."""
        return linear.scale_filters(weight, factor, self.groups, self.transposed)

    def square_norms(self, weight: Tensor) -> Tensor:
        """Squared length of each output channel's weight vector."""
        return self.filters(weight).square().sum(1)

    def lengths(self, weight: Tensor) -> Tensor:
        """Length of each output channel's weight vector, whatever the order of its axes in memory."""
        vectors = self.filters(weight) if self.transposed else weight
        length: Tensor = torch.linalg.vector_norm(vectors, dim=tuple(range(1, vectors.dim())))
        return length

    def scale_(self, weight: Tensor, factor: Tensor) -> None:
        """As :meth:`scaled`, in place."""
        shape = [1] * weight.dim()
        if not self.transposed:
            shape[0] = -1
            weight.mul_(factor.view(shape))
            return
        grouped = weight.unflatten(0, (self.groups, -1))
        grouped.mul_(factor.view(self.groups, 1, -1, *shape[2:]))
