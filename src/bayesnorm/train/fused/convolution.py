"""A convolution that keeps the size of the image, for large filters and few channels, with its gradients."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = torch.bfloat16
DEPTH = 64
"""Numbers of a row of taps, or pixels, that are multiplied at a time."""
SHALLOW = 16
"""The fewest that a device multiplies at a time, along any axis."""
SLACK = 3
"""Rows of zeros below an image, beyond its frame: a block may read so far behind the last tap."""
PARTS = 512
"""Programs that the gradient of a weight is cut into, about."""
SPARE = 2048
"""Bytes of shared memory that are not for the tiles."""


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype = HALF) -> Tensor:
    """``F.conv2d(x, weight, bias, padding="same")``, products in ``dtype``, sums in fp32.

    Gradients of weight and bias are in their own types, not rounded to ``dtype`` before.

    Arguments:
        x: ``(N, C, H, W)``; the result has its memory in the order of ``channels_last``.
        weight: ``(out, C, taps, taps)``, an odd number of taps.
        bias: ``(out,)`` or None.
        dtype: of the factors and of the result.
    """
    if x.size(1) != weight.size(1):
        raise ValueError(f"an image of {x.size(1)} channels: the weight is for {weight.size(1)}")
    apply: Any = _Convolution.apply
    return cast(Tensor, apply(x, weight, bias, dtype))


class _Convolution(torch.autograd.Function):
    """The response, and its gradients: that of the input is a response too, of the filter turned around."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        framed = _framed(x.to(dtype), weight.size(-1))
        ctx.save_for_backward(framed, weight)
        ctx.kinds = (x.dtype, None if bias is None else bias.dtype)
        return _response(framed, weight.to(dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a convolution with large filters has no second derivative: leave create_graph out")
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
    """``(N, H + taps - 1 + SLACK, W + taps - 1, C)``: zeros around it, and more below."""
    half = taps // 2
    return F.pad(x.permute(0, 2, 3, 1), (0, 0, half, half, half, half + SLACK)).contiguous()


def _response(framed: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of what stands in its frame, ``(N, out, H, W)``."""
    from ._convolution import large_kernel

    outputs, channels, taps, _ = weight.shape
    images, high, wide, _ = framed.shape
    height, width = high - taps + 1 - SLACK, wide - taps + 1
    depth, blocks, columns = _depth(taps * channels), _blocks(taps * channels), _power(outputs)
    rows = weight.permute(2, 3, 1, 0).reshape(taps, taps * channels, outputs)
    laid = F.pad(rows, (0, columns - outputs, 0, depth * blocks - taps * channels)).contiguous()
    out = framed.new_empty(images, height, width, outputs)
    pixels = 128 if width > 64 else 64
    if out.numel():
        large_kernel[(images * height * -(-width // pixels),)](
            framed,
            laid,
            None if bias is None else bias.contiguous(),
            out,
            **_form(framed, outputs, taps),
            BLOCKS=blocks,
            BIAS=bias is not None,
            BM=pixels,
            BK=depth,
            num_warps=4,
            num_stages=_stages((pixels + columns) * depth, framed, 4),
        )
    return out.permute(0, 3, 1, 2)


def _weight_gradient(framed: Tensor, grad: Tensor, taps: int) -> Tensor:
    """``(out, C, taps, taps)`` in fp32: parts of the images, added up in the same order every time."""
    from ._convolution import large_weight_kernel

    grad = grad.permute(0, 2, 3, 1).contiguous()
    images, height, _, outputs = grad.shape
    channels = framed.size(3)
    length, columns = _depth(taps * channels) * _blocks(taps * channels), _power(outputs)
    tile = min(256 if columns <= 32 else 128, _power(taps * length))
    tiles = -(-taps * length // tile)
    rows = images * height
    each = -(-rows // max(1, PARTS // tiles))
    count = -(-rows // max(1, each))
    parts = torch.empty(count, taps * length, columns, dtype=torch.float32, device=grad.device)
    if grad.numel():
        large_weight_kernel[(tiles, count)](
            framed,
            grad,
            parts,
            rows,
            **_form(framed, outputs, taps),
            LENGTH=length,
            EACH=each,
            BM=tile,
            BK=DEPTH,
            num_warps=4 if columns * tile <= 8192 else 8,
            num_stages=_stages((tile + columns) * DEPTH, framed, 3),
        )
    kept = parts.sum(0).view(taps, length, columns)[:, : taps * channels, :outputs]
    return kept.reshape(taps, taps, channels, outputs).permute(3, 2, 0, 1)


def _form(framed: Tensor, outputs: int, taps: int) -> dict[str, Any]:
    """What both kernels are told of the convolution."""
    _, high, wide, channels = framed.shape
    size = {"H": high - taps + 1 - SLACK, "W": wide - taps + 1, "C": channels, "OUT": outputs, "BN": _power(outputs)}
    return {**size, "TAPS": taps, "SLACK": SLACK, "PRECISION": "ieee"}


def _stages(numbers: int, x: Tensor, most: int) -> int:
    """Tiles of so many numbers that are on their way at a time: as many as there is shared memory for."""
    if x.device.type != "cuda":
        return most
    about: Any = torch.cuda.get_device_properties(x.device)
    limit = int(getattr(about, "shared_memory_per_block_optin", about.shared_memory_per_block)) - SPARE
    return max(1, min(most, limit // (numbers * x.element_size())))


def _depth(row: int) -> int:
    """Length of the blocks that a row of taps is cut into."""
    return min(DEPTH, _power(row))


def _blocks(row: int) -> int:
    """How many blocks a row of taps has."""
    return -(-row // _depth(row))


def _power(number: int) -> int:
    """The smallest power of two that is not less, and that a device multiplies."""
    return max(SHALLOW, 1 << (number - 1).bit_length())
