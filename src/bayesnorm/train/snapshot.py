"""What a checkpoint holds of a trainer, with torch's generators; taken, and put back."""

from __future__ import annotations

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .state import fill_
from .trainer import Trainer

ON_DEVICE = "generator.cuda"
"""The state of the generator on the device, if that has one."""


def taken(trainer: Trainer) -> dict[str, Tensor]:
    """All that changes with a step, by name."""
    device = trainer.world.device
    tensors = {**trainer.tensors(), "generator.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors[ON_DEVICE] = torch.cuda.get_rng_state(device)
    return tensors


def put_back(trainer: Trainer, stored: Checkpoint | None) -> None:
    """Make everything as it was at the checkpoint, in all processes; all but rank 0 have none and take rank 0's."""
    world, tensors = trainer.world, taken(trainer)
    if stored is not None:
        # What was drawn on a device means nothing to another kind of device, where a run may well go on.
        values = {name: value for name, value in stored.tensors.items() if name in tensors or name != ON_DEVICE}
        fill_(tensors, {ON_DEVICE: tensors[ON_DEVICE], **values} if ON_DEVICE in tensors else values)
        trainer.load_counters(stored.counters)
        stored.tensors.clear()
    if world.size > 1:
        world.share(tensors.values())
        numbers = torch.tensor([trainer.epoch, trainer.batch, *trainer.sums.values()], dtype=torch.float64)
        world.share([numbers])
        epoch, batch, *sums = numbers.tolist()
        trainer.load_counters(
            {"epoch": int(epoch), "batch": int(batch), "sums": dict(zip(trainer.sums, sums, strict=True))}
        )
    torch.set_rng_state(tensors["generator.cpu"])
    if world.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[ON_DEVICE], world.device)
