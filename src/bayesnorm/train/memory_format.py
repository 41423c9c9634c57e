"""The order in memory of what is trained: channels last, where the gradients that torch computes there are right."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .._modes import mode
from .config import Config


def lay_out_(net: nn.Module, config: Config, device: torch.device, image: Callable[[], Tensor]) -> Config:
    """Put the convolutions in the order that the configuration asks for; what comes back says which it is.

    On CUDA torch shifts the gradient of an average over a padded map, in channels last, by the padding (its issue
    188344). A network that takes such averages is trained in the usual order there.

    Arguments:
        net: on the device.
        config: with ``channels_last``.
        device: of the training.
        image: an input of the network, ``(1, C, H, W)``, if it is needed.
    """
    if not config.channels_last:
        return config
    _order_(net, torch.channels_last)
    if averages_are_right(device) or not _averages_padded(net, image()):
        return config
    _order_(net, torch.contiguous_format)
    warnings.warn(
        f"torch {torch.__version__} computes wrong gradients of padded averages (avg_pool2d) in channels_last on "
        f"{device.type} (issue 188344 of pytorch): the network is trained in contiguous memory, which may be slower",
        stacklevel=2,
    )
    return replace(config, channels_last=False)


def _order_(net: nn.Module, order: torch.memory_format) -> None:
    """Those of images, that is; torch's own ``net.to(memory_format=...)`` stops at a filter of a 3d convolution."""
    net._apply(lambda tensor: tensor.to(memory_format=order) if tensor.dim() == 4 else tensor)


@cache
def averages_are_right(device: torch.device) -> bool:
    """Whether the gradient of an average over a padded map is the same in both orders."""
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        x = torch.arange(32.0, device=device).view(1, 2, 4, 4).requires_grad_()
        last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        usual, found = [torch.autograd.grad((F.avg_pool2d(y, 3, 1, 1) * x.detach()).sum(), y)[0] for y in (x, last)]
    return torch.allclose(usual, found)


def _averages_padded(net: nn.Module, image: Tensor) -> bool:
    """Whether the network takes averages over padded maps that are in channels last."""
    with torch.no_grad(), mode(net, False), (watch := _Watch()):
        net(image.contiguous(memory_format=torch.channels_last))
    return watch.seen


class _Watch(TorchDispatchMode):
    """Looks at each operation for a padded average."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.avg_pool2d.default and len(args) > 3 and any(args[3]):
            maps = args[0]
            self.seen |= maps.stride() != torch.empty(maps.shape, device="meta").stride()
        return func(*args, **(kwargs or {}))
