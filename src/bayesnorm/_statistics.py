"""Statistics of data: of a network's inputs, of their patches, and of activations measured on an example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .moments.core import mean_var
from .moments.program import channel_axis


def input_stats(x: Tensor, chunk: int = 1024) -> tuple[Tensor, Tensor]:
    """Mean and variance per channel (axis 1) of a data set ``(N, C, *space)``, for ``convert(..., input_stats=)``.

    Computed in float64, ``chunk`` samples at a time, and returned in float32 or better. Integer images are taken at
    their values.

    >>> mean, var = input_stats(torch.tensor([[0.0, 2.0], [4.0, 2.0]]))
    >>> mean, var
    (tensor([2., 2.]), tensor([4., 0.]))
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"input_stats takes the data as one tensor (N, C, ...), not {type(x).__name__}")
    if x.dim() < 2 or x.numel() == 0:
        raise ValueError(f"input_stats needs data of shape (N, C, ...), got {tuple(x.shape)}")
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: must be at least 1")
    axes = [0, *range(2, x.dim())]
    count = x.numel() // x.size(1)
    parts = x.split(chunk)
    mean = torch.stack([part.double().sum(axes) for part in parts]).sum(0) / count
    shape = [1, -1, *[1] * (x.dim() - 2)]
    var = torch.stack([(part.double() - mean.view(shape)).square().sum(axes) for part in parts]).sum(0) / count
    if not mean.isfinite().all() or not var.isfinite().all():
        raise ValueError("input_stats: the data has NaN or infinite values")
    dtype = torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.get_default_dtype()
    if not var.to(dtype).isfinite().all():
        raise ValueError(f"input_stats: the variance of the data, {var.max().item():.3g}, is beyond {dtype}: scale it")
    return mean.to(dtype), var.to(dtype)


def patch_stats(inputs: Sequence[Tensor], layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean ``(K,)`` and covariance ``(K, K)`` of the patches that a layer sees, all of its inputs counting alike.

    Padding is left out, unless a kernel is larger than the image and has no patch without.
    """
    pairs = [_patch_stats(x, layer) for x in inputs]
    mean = torch.stack([m for m, _ in pairs]).mean(0)
    return mean, torch.stack([cov + (m - mean).outer(m - mean) for m, cov in pairs]).mean(0)


def _patch_stats(x: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
    width = 0
    total: Any = 0.0
    square: Any = 0.0
    for part in x.split(64):
        rows = _patches(part.double(), layer)
        total, square, width = total + rows.sum(0), square + rows.T @ rows, width + len(rows)
    mean = total / width
    return mean, square / width - mean.outer(mean)


def _patches(x: Tensor, layer: nn.Module) -> Tensor:
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.size(-1))
    conv = cast(nn.Conv2d, layer)
    space = len(conv.kernel_size)
    spans = [(k - 1) * d + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    if any(span > size for span, size in zip(spans, x.shape[2:], strict=True)):
        x = F.pad(x, conv._reversed_padding_repeated_twice)
    for axis, (span, d, s) in enumerate(zip(spans, conv.dilation, conv.stride, strict=True)):
        x = x.unfold(2 + axis, span, s)[..., ::d]
    order = [0, *range(2, 2 + space), 1, *range(2 + space, 2 + 2 * space)]
    return x.permute(order).flatten(0, space).flatten(1)


@contextmanager
def watched(modules: dict[nn.Module, str]) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Collects mean and variance per channel of each module's output (or, ``"input"``, of its input)."""
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    handles = []
    for module, side in modules.items():

        def hook(module: nn.Module, args: Any, output: Tensor, side: str = side) -> None:
            x = (args[0] if side == "input" else output).detach().double()
            found[module] = mean_var(x, channel_axis(module, x.dim()))

        handles.append(module.register_forward_hook(hook))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
