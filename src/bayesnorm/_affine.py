"""``y * factor + summand`` with one factor per sample and channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 18
"""Numbers in a temporary that stays in the cache: a fresh one of the activation's size costs more than the product."""


def scaled(y: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    """``y * factor + summand``, broadcast; without gradients it may overwrite ``y``."""
    if torch.compiler.is_compiling():
        return torch.addcmul(summand, y, factor)
    if not torch.is_grad_enabled() and not y.requires_grad:
        return torch.addcmul(summand, y, factor, out=y)
    out: Tensor = _Scaled.apply(y, factor, summand)  # type: ignore[no-untyped-call]
    return out


class _Scaled(torch.autograd.Function):
    """On a CPU, the gradient of the factor is reduced a few samples at a time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
        return torch.addcmul(summand, y, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        y, factor, summand = inputs
        ctx.save_for_backward(y, factor)
        ctx.summand = summand.shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,) = grads
        y, factor = ctx.saved_tensors
        for_y = grad * factor if ctx.needs_input_grad[0] else None
        for_factor = _product_sum(grad, y, factor.shape) if ctx.needs_input_grad[1] else None
        for_summand = grad.sum_to_size(ctx.summand) if ctx.needs_input_grad[2] else None
        return for_y, for_factor, for_summand


def _product_sum(a: Tensor, b: Tensor, shape: torch.Size) -> Tensor:
    """``(a * b).sum_to_size(shape)``; the batch axis stays.

    On a CPU without a temporary of that size. On a GPU the launches of many small sums would cost more than it does.
    """
    if a.is_cuda:
        return (a * b).sum_to_size(shape)
    samples = max(1, CHUNK // max(1, a.shape[1:].numel()))
    rest = shape[1:]
    parts = [(x * y).sum_to_size((len(x), *rest)) for x, y in zip(a.split(samples), b.split(samples), strict=True)]
    return torch.cat(parts)
