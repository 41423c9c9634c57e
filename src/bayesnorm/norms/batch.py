"""Batch normalization of the response of ``w / ||w||``, so that it does not depend on ``||w||`` at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..moments.core import wide
from .base import Norm, Pair, root
from .geometry import Geometry


@dataclass(frozen=True)
class Batch:
    """Batch normalization.

    Arguments:
        momentum: of the running averages; None keeps that of a converted BatchNorm, or 0.1.
        eps: added to the variance of the response of ``w / ||w||``; None keeps that of a converted BatchNorm, or 1e-5.
    """

    momentum: float | None = None
    eps: float | None = None

    def __post_init__(self) -> None:
        if self.momentum is not None and not (isinstance(self.momentum, (int, float)) and 0 <= self.momentum <= 1):
            raise ValueError(f"Batch(momentum={self.momentum}): must lie in [0, 1]")
        if self.eps is not None and not (isinstance(self.eps, (int, float)) and 0 < self.eps < math.inf):
            raise ValueError(f"Batch(eps={self.eps}): must be finite and positive")


class BatchNorm(Norm):
    """Batch statistics in training, running averages in evaluation, both of the response of ``spread * w / ||w||``.

    ``spread`` is constant: the length (and sign) that a converted network's filters had, so that its eps and running
    statistics keep their meaning while the function does not depend on ``||w||``.
    """

    forgets_input = True
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        channels: int,
        *,
        momentum: float | None = 0.1,
        eps: float = 1e-5,
        sync: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        self.momentum = momentum
        self.eps = eps
        self.sync = sync
        self.register_buffer("running_mean", torch.zeros(channels, device=device, dtype=dtype))
        self.register_buffer("running_var", torch.ones(channels, device=device, dtype=dtype))
        self.register_buffer("num_batches_tracked", torch.tensor(0, device=device))

    def options(self) -> dict[str, Any]:
        """Momentum and eps."""
        return {"momentum": self.momentum, "eps": self.eps}

    def unit(self, weight: Tensor | None, geometry: Geometry) -> Tensor:
        """Factor per channel that makes the response independent of ``||w||``."""
        if weight is None:
            return self.spread
        return self.spread / root(geometry.square_norms(weight))

    def normalizer(self, weight: Tensor | None, geometry: Geometry, moments: Pair | None) -> Pair:
        """Evaluation mode: ``(gain, offset)`` from the running statistics."""
        scale = (self.running_var + self.eps).rsqrt()
        return self.unit(weight, geometry) * scale, -self.running_mean * scale

    def forward(self, response: Tensor, gain: Tensor | None, shift: Tensor | None) -> Tensor:
        """Training mode: normalize by the batch, channels on axis 1, then ``* gain + shift``."""
        momentum = self.momentum
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        if self.sync and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return self._normalize_across(response, gain, shift, momentum)
        if gain is None and shift is not None:
            gain = torch.ones_like(shift)  # without it, torch's kernel for CUDA returns no gradient of the shift
        return F.batch_norm(response, self.running_mean, self.running_var, gain, shift, True, momentum, self.eps)

    def _normalize_across(self, x: Tensor, gain: Tensor | None, shift: Tensor | None, momentum: float) -> Tensor:
        """The same over all ranks (a converted SyncBatchNorm)."""
        axes = [0, *range(2, x.dim())]
        x, dtype = wide(x), x.dtype
        count = torch.full((1,), float(x.numel() // x.size(1)), device=x.device, dtype=x.dtype)
        total = _sum(torch.cat([x.sum(axes), count]))
        n = total[-1]
        mean = total[:-1] / n
        shape = [1, -1] + [1] * (x.dim() - 2)
        var = _sum((x - mean.view(shape)).square().sum(axes)) / n
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_((var * n / (n - 1)).to(self.running_var.dtype), momentum)
        scale = (var + self.eps).rsqrt()
        scale = scale if gain is None else scale * gain
        offset = -mean * scale if shift is None else shift - mean * scale
        return torch.addcmul(offset.view(shape), x, scale.view(shape)).to(dtype)

    def extra_repr(self) -> str:
        """Channels, momentum and eps."""
        return f"{self.center.numel()}, momentum={self.momentum}, eps={self.eps}"


def _sum(x: Tensor) -> Tensor:
    return cast(Tensor, _Sum.apply(x))  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    """Sum over all ranks. Each rank's loss depends on it, so its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total
