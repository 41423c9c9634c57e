"""Where a loss or a gradient stopped being finite."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from .._sampling import runtimes
from ..errors import DivergedError
from ..layers import norm_layers


def explain(
    net: nn.Module, images: Tensor, step: int, epoch: int, lr: float, loss: float, norm: float
) -> DivergedError:
    """The error that names step, learning rate and layer, with a remedy."""
    where = _where(net, images)
    if where is None:
        what = f"the loss is {loss:.3g}, the norm of the gradient {norm:.3g}"
    elif math.isfinite(loss):
        what = f"the gradient is not finite, first {where}"
    else:
        what = f"the loss is {loss}, not finite first {where}"
    return DivergedError(
        f"diverged at step {step} (epoch {epoch + 1}, learning rate {lr:.3g}): {what}; choose a smaller --lr, or "
        "--clip 1, or --warmup-steps 500"
    )


def _where(net: nn.Module, images: Tensor) -> str | None:
    if not images.isfinite().all():
        return "in the images of the batch"
    for name, parameter in net.named_parameters():
        if not parameter.isfinite().all():
            return f"in the parameter {name}"
    for name, layer in norm_layers(net).items():
        divergence = layer.scale.kl()
        if divergence is not None and not divergence.isfinite():
            return f"in the KL of layer {name}"
    found = _first_output(net, images)
    if found is not None:
        return f"in the output of layer {found}"
    # A backward pass runs from the last layer to the first.
    for name, parameter in reversed(list(net.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"in the gradient of {name}"
    return None


@torch.no_grad()
def _first_output(net: nn.Module, images: Tensor) -> str | None:
    """The first layer whose output is not finite, in a repetition of the forward pass on a copy."""
    twin = copy.deepcopy(net).train()
    for runtime in runtimes(twin):
        runtime.buffer("noise_step").sub_(1)
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not output.isfinite().all():
                found.append(name)

        return hook

    for name, module in twin.named_modules():
        if not any(True for _ in module.children()) or isinstance(module, tuple(_leaf_types(twin))):
            module.register_forward_hook(look(name))
    twin(images)
    return found[0] if found else None


def _leaf_types(net: nn.Module) -> set[type]:
    return {type(layer) for layer in norm_layers(net).values()}
