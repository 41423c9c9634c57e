"""Which convolutions of a network are computed by kernels of their own, and when."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config
from .convolution import HALF, convolution

Convolve = Callable[[Tensor, Tensor], Tensor]

SMALLEST = 9
"""Taps in a row, and"""
MOST = 64
"""channels, as the cell network has them: others are torch's."""
OLDEST = (8, 0)
"""Compute capability of the first devices that multiply bf16."""
ROUNDING = 0.02
"""By how much, relative to its length, a result or gradient may differ from torch's: each rounds to eight bits."""


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

    What is not autocast, in an evaluation or in a part of the network that switches it off, stays torch's.
    """
    wanted = config.precision == "bf16" and device.type == "cuda" and works(device)
    layers: list[Any] = [module for module in net.modules() if is_large(module)] if wanted else []
    try:
        for layer in layers:
            layer._conv_forward = _lent
        yield
    finally:
        for layer in layers:
            del layer._conv_forward


@cache
def works(device: torch.device) -> bool:
    """Whether the kernels can be built and run on a device; if they should but cannot, a warning says why."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    x, weight = torch.zeros(1, 1, 1, 1, device=device), torch.zeros(1, 1, SMALLEST, SMALLEST, device=device)
    try:
        with torch.enable_grad():
            torch.autograd.grad(convolution(x.requires_grad_(), weight.requires_grad_()).sum(), (x, weight))
    except Exception as error:  # of a compiler that is missing, of Triton, of the driver
        warnings.warn(f"convolutions with large filters are torch's, as Triton fails: {error}", stacklevel=2)
        return False
    return True


@cache
def agrees(device: torch.device, image: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    """Whether response and gradients of layers of this size are torch's on a device; if not, a warning says so.

    Compilers differ between devices, and a step that is wrong looks like one that does not learn. Tried once for each
    size, on numbers that leave torch's generators alone.
    """
    source = torch.Generator(device).manual_seed(0)
    sizes = (image, weight, (image[0], weight[0], *image[2:]))
    x, filters, toward = (torch.randn(size, generator=source, device=device) for size in sizes)
    ours, theirs = (_judged(convolve, x, filters, toward) for convolve in (convolution, _of_torch))
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)]
    if all(far <= ROUNDING for far in apart):
        return True
    names = ("response", "gradient of the input", "gradient of the weight")
    found = ", ".join(f"{name} {far:.2g}" for name, far in zip(names, apart, strict=True))
    warnings.warn(
        f"a convolution of {tuple(weight)} on images {tuple(image)} is torch's, as ours differs from it on this device "
        f"(relative to its length: {found}); please report this",
        stacklevel=2,
    )
    return False


def _judged(convolve: Convolve, x: Tensor, weight: Tensor, toward: Tensor) -> list[Tensor]:
    """The response and its gradients."""
    leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        y = convolve(*leaves)
        return [part.detach().float() for part in (y, *torch.autograd.grad(y, leaves, toward.to(y.dtype)))]


def _of_torch(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x.to(HALF), weight.to(HALF), padding=weight.size(-1) // 2)


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
