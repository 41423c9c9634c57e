"""Convolutions with large filters and few channels, in kernels of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config

SMALLEST = 5
"""Taps in a row below which torch's own convolutions are left alone."""
MOST = 128
"""Channels that one program takes at a time."""
DEPTH = 64
"""Numbers of a row of taps, or pixels, that are multiplied at a time."""
SHALLOW = 16
"""The fewest."""
PARTS = 512
"""Programs that the gradient of a weight is cut into, about."""
OLDEST = (8, 0)
"""Compute capability of the first devices that multiply bf16."""
SPARE = 2048
"""Bytes of shared memory that are not for the tiles."""


def is_large(conv: nn.Module) -> bool:
    """Whether a layer is a convolution of this kind: square, padded to keep the size, stride 1, few channels."""
    if not isinstance(conv, nn.Conv2d) or "_conv_forward" in vars(conv):
        return False
    taps = conv.kernel_size[0]
    square = conv.kernel_size == (taps, taps) and taps % 2 == 1 and taps >= SMALLEST
    plain = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    kept = conv.padding == "same" or tuple(conv.padding) == (taps // 2, taps // 2)
    return square and plain and kept and max(conv.in_channels, conv.out_channels) <= MOST


@contextmanager
def large_filters(net: nn.Module, config: Config, device: torch.device) -> Iterator[None]:
    """Inside, on CUDA and in bf16, such layers of the network compute with the kernels of this file."""
    wanted = config.precision == "bf16" and device.type == "cuda" and find_spec("triton") is not None
    able = wanted and not (torch.cuda.is_available() and torch.cuda.get_device_capability(device) < OLDEST)
    layers: list[Any] = [module for module in net.modules() if is_large(module)] if able else []
    try:
        for layer in layers:
            layer._conv_forward = convolution
        yield
    finally:
        for layer in layers:
            del layer._conv_forward


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """``F.conv2d(x, weight, bias, padding="same")``, products in ``dtype``, sums in fp32.

    Arguments:
        x: ``(N, C, H, W)``; the result has its memory in the order of ``channels_last``.
        weight: ``(out, C, taps, taps)``, an odd number of taps.
        bias: ``(out,)`` or None.
        dtype: of the factors and of the result.
    """
    apply: Any = _Convolution.apply
    if x.size(1) != weight.size(1):
        raise ValueError(f"an image of {x.size(1)} channels: the weight is for {weight.size(1)}")
    return cast(Tensor, apply(x, weight, bias, dtype))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        framed = _framed(x.to(dtype), weight.size(-1))
        ctx.save_for_backward(framed, weight)
        ctx.kinds = (x.dtype, None if bias is None else bias.dtype)
        return _response(framed, weight.to(dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        framed, weight = ctx.saved_tensors
        grad, taps, (kind, bias_kind) = grads[0].to(framed.dtype), weight.size(-1), ctx.kinds
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            turned = weight.to(framed.dtype).flip(2, 3).transpose(0, 1)
            grad_x = _response(_framed(grad, taps), turned, None).to(kind)
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(framed, grad, taps).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum((0, 2, 3), dtype=torch.float32).to(bias_kind)
        return grad_x, grad_weight, grad_bias, None


def _framed(x: Tensor, taps: int) -> Tensor:
    """``(N, H + taps, W + taps - 1, C)``: zeros around it, and one row more below."""
    half = taps // 2
    return F.pad(x.permute(0, 2, 3, 1), (0, 0, half, half, half, half + 1)).contiguous()


def _response(framed: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of what stands in its frame, ``(N, out, H, W)``."""
    from ._large import large_kernel

    outputs, channels, taps, _ = weight.shape
    images, high, wide, _ = framed.shape
    height, width = high - taps, wide - taps + 1
    depth, blocks, columns = _depth(taps * channels), _blocks(taps * channels), _power(outputs)
    rows = weight.permute(2, 3, 1, 0).reshape(taps, taps * channels, outputs)
    laid = F.pad(rows, (0, columns - outputs, 0, depth * blocks - taps * channels)).contiguous()
    out = framed.new_empty(images, height, width, outputs)
    pixels = 128 if width > 64 else 64
    large_kernel[(images * height * -(-width // pixels),)](
        framed,
        laid,
        bias,
        out,
        H=height,
        W=width,
        C=channels,
        OUT=outputs,
        TAPS=taps,
        BLOCKS=blocks,
        BIAS=bias is not None,
        PRECISION="ieee",
        BM=pixels,
        BN=columns,
        BK=depth,
        num_warps=4,
        num_stages=_stages((pixels + columns) * depth, framed, 4),
    )
    return out.permute(0, 3, 1, 2)


def _weight_gradient(framed: Tensor, grad: Tensor, taps: int) -> Tensor:
    """``(out, C, taps, taps)`` in fp32: parts of the images, added up in the same order every time."""
    from ._large import large_weight_kernel

    grad = grad.permute(0, 2, 3, 1).contiguous()
    images, height, width, outputs = grad.shape
    channels = framed.size(3)
    length, columns = _depth(taps * channels) * _blocks(taps * channels), _power(outputs)
    tile = min(256 if columns <= 32 else 128, _power(taps * length))
    tiles = -(-taps * length // tile)
    rows = images * height
    each = -(-rows // max(1, PARTS // tiles))
    count = -(-rows // each)
    parts = torch.empty(count, taps * length, columns, dtype=torch.float32, device=grad.device)
    large_weight_kernel[(tiles, count)](
        framed,
        grad,
        parts,
        rows,
        H=height,
        W=width,
        C=channels,
        OUT=outputs,
        TAPS=taps,
        LENGTH=length,
        EACH=each,
        PRECISION="ieee",
        BM=tile,
        BN=columns,
        BK=DEPTH,
        num_warps=4 if columns * tile <= 8192 else 8,
        num_stages=_stages((tile + columns) * DEPTH, framed, 3),
    )
    kept = parts.sum(0).view(taps, length, columns)[:, : taps * channels, :outputs]
    return kept.reshape(taps, taps, channels, outputs).permute(3, 2, 0, 1)


def _stages(numbers: int, x: Tensor, most: int) -> int:
    """Tiles of so many numbers that are on their way at a time: as many as there is shared memory for."""
    if x.device.type != "cuda":
        return most
    about: Any = torch.cuda.get_device_properties(x.device)
    limit = int(getattr(about, "shared_memory_per_block_optin", about.shared_memory_per_block)) - SPARE
    return max(1, min(most, limit // (numbers * x.element_size())))


def _depth(row: int) -> int:
    """Numbers of a row of taps in a block."""
    return min(DEPTH, _power(row))


def _blocks(row: int) -> int:
    """Of them in a row."""
    return -(-row // _depth(row))


def _power(number: int) -> int:
    """The next power of two, of what the device multiplies at a time."""
    return max(SHALLOW, 1 << (number - 1).bit_length())
