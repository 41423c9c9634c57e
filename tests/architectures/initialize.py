"""Initial weights that carry the signal through deep networks whose normalisation statistics are arbitrary."""

import math
from collections.abc import Sequence

import torch
from torch import nn


@torch.no_grad()
def he_initialize_(net: nn.Module, branch_ends: Sequence[nn.Module] = (), gain: float = math.sqrt(2.0)) -> None:
    """He-normal weights (fan in) for every linear map of `net`; the biases keep their random default.

    The `branch_ends`, the last linear maps of the residual branches, are divided by the square root of their number,
    so that the sum over the branches stays bounded at any depth.
    """
    for module in net.modules():
        if isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
            fan_in = module.weight[0].numel()
            if isinstance(module, nn.modules.conv._ConvTransposeNd):
                fan_in = max(1, module.weight.numel() // (module.out_channels * math.prod(module.stride)))
            nn.init.normal_(module.weight, std=gain / math.sqrt(fan_in))
    for module in branch_ends:
        assert isinstance(module.weight, nn.Parameter)
        module.weight.div_(math.sqrt(len(branch_ends)))
