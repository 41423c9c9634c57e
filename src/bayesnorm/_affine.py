"""``y * factor + summand`` with one factor per sample and channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .moments.core import is_eager


def scaled(y: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    """``y * factor + summand``, broadcast; without gradients it may overwrite ``y``."""
    if not is_eager() or forward_ad._current_level >= 0:
        return torch.addcmul(summand, y, factor)
    if not torch.is_grad_enabled() and not y.requires_grad:
        return _product(y, factor, summand, y)
    out: Tensor = _Scaled.apply(y, factor, summand)  # type: ignore[no-untyped-call]
    return out


def _product(y: Tensor, factor: Tensor, summand: Tensor, out: Tensor | None) -> Tensor:
    if y.device.type != "cpu" or not y.is_contiguous():
        return torch.addcmul(summand, y, factor, out=out)
    # On a CPU addcmul has no vectors for factors that stay the same along a row, and the summand is mostly zero.
    product = torch.mul(y, factor, out=out)
    return product.add_(summand) if summand.any() else product


class _Scaled(torch.autograd.Function):
    """The gradient of ``y`` is written over the products that were summed for that of the factor."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
        ctx.save_for_backward(y, factor)
        ctx.summand = summand.shape
        return _product(y, factor, summand, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,) = grads
        y, factor = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        products = grad * y if wanted[1] else None
        for_factor = None if products is None else products.sum_to_size(factor.shape)
        # Where nothing was summed the products are the gradient of the factor.
        free = grad.shape != factor.shape and is_eager() and not torch.is_grad_enabled()
        again = products if free else None
        for_y = torch.mul(grad, factor, out=again) if wanted[0] else None
        return for_y, for_factor, grad.sum_to_size(ctx.summand) if wanted[2] else None
