"""Which trainer takes the steps: the plain loop, or the captured one where it can."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..data.base import Data
from ..norms import BatchNorm
from .captured import CapturedTrainer
from .config import Config
from .trainer import Trainer
from .world import World


def make_trainer(net: nn.Module, data: Data, config: Config, lr: float, world: World) -> Trainer:
    """The trainer that the configuration asks for.

    Arguments are those of :class:`Trainer`. ``"auto"`` captures on CUDA what can be captured; ``"captured"`` refuses
    what cannot.
    """
    refuse_engine(net, data, config, world)
    captured = config.engine == "captured" or (config.engine == "auto" and data.device.type == "cuda")
    if captured and _obstacle(net, data, config, world) is None:
        return CapturedTrainer(net, data, config, lr, world)
    return Trainer(net, data, config, lr, world)


def refuse_engine(net: nn.Module, data: Data, config: Config, world: World) -> None:
    """ValueError if the captured engine is asked for and cannot do it."""
    obstacle = _obstacle(net, data, config, world) if config.engine == "captured" else None
    if obstacle is not None:
        raise ValueError(f"--engine captured: {obstacle}; choose --engine plain")


def _obstacle(net: nn.Module, data: Data, config: Config, world: World) -> str | None:
    """What keeps the step from being captured, in words."""
    if world.size > 1:
        return "several processes wait for each other at every step"
    if config.norm_batch is not None:
        return "--norm-batch draws the other samples on the host"
    if data.augment.deform:
        return f"the deformation of {data.name} is not made for it"
    if any(isinstance(m, BatchNorm | _BatchNorm) and m.momentum is None for m in net.modules()):
        return "batch norm with momentum None reads its count on the host"
    kinds = {(p.dtype, p.device) for p in net.parameters() if p.requires_grad}
    if len(kinds) > 1:
        return "the network has parameters of several types or devices"
    return None
