"""Random batch-norm statistics and parameters."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

TINY = 1e-6


@torch.no_grad()
def randomize_(net: nn.Module, seed: int = 0, corner: bool = True) -> nn.Module:
    """Draws the statistics and parameters of every batch norm of `net`, in place, and returns `net`.

    Running means from N(0, 0.5^2), running variances from U(0.3, 2), shifts from N(0, 0.5^2), scales from N(0, 1)
    rescaled to unit mean square, which keeps the signal bounded through deep networks. With `corner`, the scales of
    one channel in 32 (at least one, from four channels on) are exactly zero, and those of as many are 1e-6 or -1e-6.
    Only one draw per module is made, also where a module is registered under several names.
    """
    generator = torch.Generator().manual_seed(seed)
    for norm in net.modules():
        if not isinstance(norm, _BatchNorm):
            continue
        channels = norm.num_features
        if norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.copy_(0.5 * torch.randn(channels, generator=generator))
            norm.running_var.copy_(0.3 + 1.7 * torch.rand(channels, generator=generator))
        if norm.affine:
            norm.weight.copy_(_scales(channels, generator, corner))
            norm.bias.copy_(0.5 * torch.randn(channels, generator=generator))
    return net


def _scales(channels: int, generator: torch.Generator, corner: bool) -> torch.Tensor:
    scales = torch.randn(channels, generator=generator)
    order = torch.randperm(channels, generator=generator)
    special = max(1, channels // 32) if corner and channels >= 4 else 0
    zero, tiny, live = order[:special], order[special : 2 * special], order[2 * special :]
    scales[zero] = 0.0
    scales[tiny] = TINY * scales[tiny].sign()
    scales[live] *= (channels / scales[live].square().sum()).sqrt()
    return scales
