"""All tensors of a run by name: what a checkpoint fits, filling them, and their digest."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from ..errors import RunError


def signature(net: nn.Module) -> dict[str, str]:
    """Name, type and shape of every tensor of a network: what a checkpoint fits."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        for name, value in net.state_dict().items()
        if isinstance(value, Tensor)
    }


@torch.no_grad()
def fill_(tensors: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
    """Copy stored values in; names, types and shapes have to agree."""
    missing, unknown = sorted(set(tensors) - set(stored)), sorted(set(stored) - set(tensors))
    if missing or unknown:
        what = f"it lacks {missing[0]!r}" if missing else f"it has {unknown[0]!r}, which the network lacks"
        raise RunError(f"the checkpoint is of another network: {what}")
    for name, tensor in tensors.items():
        value = stored[name]
        if value.shape != tensor.shape or value.dtype != tensor.dtype:
            raise RunError(
                f"the checkpoint is of another network: {name!r} is {value.dtype} {tuple(value.shape)} there and "
                f"{tensor.dtype} {tuple(tensor.shape)} here"
            )
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all values with their names."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
