"""Optimizer and schedules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._parameters import param_groups
from .config import Config


def make_optimizer(net: nn.Module, config: Config, lr: float) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum or Adam, the variances of the posterior with a step of their own.

    The state is there from the start, all zero (the first step is the same), so that all checkpoints have equal keys.
    """
    groups = param_groups(net, lr, variance_lr=config.variance_factor * lr)
    if not groups:
        raise ValueError("the network has no parameter that requires a gradient: there is nothing to train")
    if config.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr, momentum=config.momentum, nesterov=True)
    else:
        optimizer = torch.optim.Adam(groups, lr)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = _zeros(parameter, config)
    return optimizer


def _zeros(parameter: Tensor, config: Config) -> dict[str, Tensor]:
    zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    if config.optimizer == "sgd":
        return {"momentum_buffer": zeros}
    return {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}


def state_tensors(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of the optimizer by the names of the parameters."""
    return {
        f"optimizer.{name}.{key}": value
        for name, parameter in net.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


class Schedule:
    """Learning rate ``lr * g^epoch`` and factor of the KL, each with a linear warm-up.

    Arguments:
        config: decay and warm-ups.
        lr: learning rate at the start.
        steps: per epoch.
    """

    def __init__(self, config: Config, lr: float, steps: int) -> None:
        self.config, self.lr, self.steps = config, lr, steps

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        warm = min(1.0, (step + 1) / self.config.warmup_steps) if self.config.warmup_steps else 1.0
        return float(self.lr * warm * self.config.decay ** (step // self.steps))

    def kl_factor(self, step: int) -> float:
        """Factor of the KL in a step."""
        length = self.config.kl_warmup * self.steps
        return self.config.kl_factor * (min(1.0, step / length) if length else 1.0)

    def set_(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Give the optimizer the learning rates of a step."""
        rate = self.rate(step)
        for group in optimizer.param_groups:
            group["lr"] = rate * (self.config.variance_factor if group["name"] == "variances" else 1.0)
        return rate
