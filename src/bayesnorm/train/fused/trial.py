"""Whether the kernels of large filters can be built on a device, and compute there what torch computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from .convolution import HALF, convolution

Convolve = Callable[[Tensor, Tensor], Tensor]

TAPS = 9
"""Of the filter that is tried first."""
OLDEST = (8, 0)
"""Compute capability of the first devices that multiply bf16."""
ROUNDING = 0.02
"""By how much, relative to its length, a result or gradient may differ from torch's: each rounds to eight bits."""


@cache
def works(device: torch.device) -> bool:
    """Whether the kernels can be built and run on a device; if they should but cannot, a warning says why."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return False
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    x, weight = torch.zeros(1, 1, 1, 1, device=device), torch.zeros(1, 1, TAPS, TAPS, device=device)
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
