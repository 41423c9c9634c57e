"""Running statistics of batch norms, averaged anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._modes import mode
from .norms import BatchNorm


@torch.no_grad()
def update_bn(batches: Iterable[Any], net: nn.Module) -> None:
    """Average mean and variance of every batch norm over these batches, in place of its running statistics.

    For weights that are themselves averages (``torch.optim.swa_utils.AveragedModel``): torch's own ``update_bn`` looks
    for torch's own batch norms and passes over those of a converted network. The network runs in training mode, as
    there; mode and momentum are restored, also after an exception.

    Arguments:
        batches: tensors, or tuples and lists whose first part is the input.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), norm="batch", scale="point")
    >>> update_bn([torch.randn(8, 4), torch.randn(8, 4)], net)
    >>> int(net[0].norm.num_batches_tracked)
    2
    """
    kinds = (BatchNorm, _BatchNorm)
    norms: list[Any] = [m for m in net.modules() if isinstance(m, kinds) and m.running_mean is not None]
    if not norms:
        return
    before = [module.momentum for module in norms]
    try:
        for module in norms:
            module.momentum = None  # a plain mean
            module.running_mean.zero_()
            module.running_var.fill_(1)
            module.num_batches_tracked.zero_()
        with mode(net, True):
            for batch in batches:
                net(batch[0] if isinstance(batch, Sequence) else batch)
    finally:
        for module, momentum in zip(norms, before, strict=True):
            module.momentum = momentum
