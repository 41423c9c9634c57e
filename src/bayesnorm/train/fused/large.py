"""Which convolutions of a network are computed by kernels of their own, and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config
from .convolution import HALF, convolution
from .trial import agrees, works

SMALLEST = 9
"""Taps in a row, and"""
MOST = 64
"""channels, as the cell network has them: others are torch's."""


def is_large(conv: nn.Module) -> bool:
    """Whether a layer is a convolution of this kind: square, padded to keep the size, stride 1, few channels."""
    if not isinstance(conv, nn.Conv2d) or "_conv_forward" in vars(conv):
        return False
    taps = conv.kernel_size[0]
    own = type(conv)._conv_forward is nn.Conv2d._conv_forward
    square = conv.kernel_size == (taps, taps) and taps % 2 == 1 and taps >= SMALLEST
    plain = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    kept = conv.padding == "same" or tuple(conv.padding) == (taps // 2, taps // 2)
    return own and square and plain and kept and max(conv.in_channels, conv.out_channels) <= MOST


@contextmanager
def large_filters(net: nn.Module, config: Config, device: torch.device) -> Iterator[None]:
    """Inside, on CUDA and in bf16, such layers of the network compute with these kernels; it must not be copied there.

    What is not autocast, in an evaluation or in a part of the network that switches it off, stays torch's; so does a
    network that is not trained in channels last, the order of what the kernels return.
    """
    wanted = config.precision == "bf16" and config.channels_last and device.type == "cuda" and works(device)
    layers: list[Any] = [module for module in net.modules() if is_large(module)] if wanted else []
    try:
        for layer in layers:
            layer._conv_forward = _lent
        yield
    finally:
        for layer in layers:
            del layer._conv_forward


def _lent(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In place of ``nn.Conv2d._conv_forward``."""
    if x.dim() == 4 and weight.dtype == torch.float32 and _halved(x.device.type) and _trusted(x, weight):
        return convolution(x, weight, bias)
    return F.conv2d(x, weight, bias, padding=weight.size(-1) // 2)


def _trusted(x: Tensor, weight: Tensor) -> bool:
    """What is compiled cannot stop to compare, and what does not fit is for the convolution to refuse."""
    return torch.compiler.is_compiling() or x.size(1) != weight.size(1) or agrees(x.device, x.shape, weight.shape)


def _halved(kind: str) -> bool:
    """Whether torch would compute a convolution in bf16 here."""
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == HALF
