"""Which trainer takes the steps: kernels of their own, the captured loop or the plain one, the fastest that can."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..data.base import Data
from ..norms import BatchNorm
from .captured import CapturedTrainer
from .config import Config
from .fused.dock import Dock
from .fused.trainer import FusedTrainer, not_fused
from .trainer import Trainer
from .world import World


def make_trainer(
    net: nn.Module, data: Data, config: Config, lr: float, world: World, dock: Dock | None = None
) -> Trainer:
    """The trainer that the configuration asks for.

    Arguments are those of :class:`Trainer`, and where others of its kind may be met. ``"auto"`` takes on CUDA the
    fastest engine that can do it; an engine asked for by name refuses what it cannot.
    """
    refuse_engine(net, data, config, world)
    automatic = config.engine == "auto" and data.device.type == "cuda"
    if config.engine == "fused" or (automatic and _obstacle(net, data, config, world, "fused") is None):
        return FusedTrainer(net, data, config, lr, world, dock)
    if config.engine == "captured" or (automatic and _obstacle(net, data, config, world, "captured") is None):
        return CapturedTrainer(net, data, config, lr, world)
    return Trainer(net, data, config, lr, world)


def refuse_engine(net: nn.Module, data: Data, config: Config, world: World) -> None:
    """ValueError if an engine is asked for by name and cannot do it."""
    named = config.engine in ("captured", "fused")
    obstacle = _obstacle(net, data, config, world, config.engine) if named else None
    if obstacle is not None:
        others = "plain" if config.engine == "captured" else "auto"
        raise ValueError(f"--engine {config.engine}: {obstacle}; choose --engine {others}")


def _obstacle(net: nn.Module, data: Data, config: Config, world: World, engine: str) -> str | None:
    """What keeps the step from being captured, or fused, in words."""
    if world.size > 1:
        return "several processes wait for each other at every step"
    if any(isinstance(m, BatchNorm | _BatchNorm) and m.momentum is None for m in net.modules()):
        return "batch norm with momentum None reads its count on the host"
    kinds = {(p.dtype, p.device) for p in net.parameters() if p.requires_grad}
    if len(kinds) > 1:
        return "the network has parameters of several types or devices"
    if engine != "fused":
        return None
    if config.norm_batch is not None:
        return "it takes no samples that only normalize (--norm-batch)"
    return "it does not deform images" if data.augment.deform else not_fused(net, data, config)
