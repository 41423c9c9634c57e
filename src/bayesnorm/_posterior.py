"""What was learned about the scales."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .layers import norm_layers


class Posterior(NamedTuple):
    """Mean and std of the scale of each channel of one layer."""

    mean: Tensor
    sigma: Tensor

    @property
    def relative(self) -> Tensor:
        """sigma / abs(s), finite also where s is 0: a scale may change its sign in training."""
        return self.sigma / self.mean.abs().clamp(min=torch.finfo(self.mean.dtype).tiny)


@torch.no_grad()
def posterior(net: nn.Module) -> dict[str, Posterior]:
    """``{layer name: (mean, sigma)}`` of every layer whose scale is random, in the order of the network.

    For a noise scale these are ``s`` and ``s * sigma_u``.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes", preserve=False)
    >>> posterior(net)["0"].relative
    tensor([0.1000, 0.1000, 0.1000])
    """
    return {
        name: Posterior(layer.scale.s.detach().clone(), layer.scale.spread().clone())
        for name, layer in norm_layers(net).items()
        if layer.is_random
    }
