"""The processes that train together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """This process among all of them; one process alone is a world of size 1.

    Arguments:
        rank: number of this process; 0 writes the run folder.
        size: number of processes.
        device: where tensors that are exchanged live.
    """

    rank: int
    size: int
    device: torch.device

    @classmethod
    def current(cls, device: torch.device) -> World:
        """As ``torch.distributed`` has it."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), device)
        return cls(0, 1, device)

    @property
    def writes(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def average(self, gradients: list[Tensor]) -> None:
        """Mean over all processes, in place.

        One sum in a fixed order: torch's DistributedDataParallel cuts the gradient into pieces by what it has seen
        since it was made, so that a resumed run of three or more processes would differ in the last digits.
        """
        if self.size == 1:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat.div_(self.size)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def agree(self, number: int) -> int:
        """The number that rank 0 has."""
        if self.size == 1:
            return number
        value = torch.tensor(number, dtype=torch.int64, device=self.device)
        dist.broadcast(value, 0)
        return int(value)

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the values of rank 0, in place."""
        if self.size == 1:
            return
        for tensor in tensors:
            there = tensor.detach().to(self.device).contiguous()
            dist.broadcast(there, 0)
            with torch.no_grad():
                tensor.copy_(there)
