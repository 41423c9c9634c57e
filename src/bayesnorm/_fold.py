"""Normalized network -> plain torch layers with the same evaluation output."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import is_parametrized

from ._hooks import release_buffers, unhook
from .layers import PLAIN, ChannelNorm, NormLayer, norm_layers


@torch.no_grad()
def fold(net: nn.Module) -> nn.Module:
    """A copy in evaluation mode that has torch's own layers only: norm, mean scale and bias fold into weight and bias.

    A normalization that follows no convolution becomes a BatchNorm again, and a parametrized weight a parameter. The
    result exports like any torch network.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="analytic", scale="bayes").eval()
    >>> plain, x = fold(net), torch.randn(2, 4)
    >>> plain[0], torch.allclose(plain(x), net(x), atol=1e-6)
    (Linear(in_features=4, out_features=3, bias=True), True)
    """
    for name, layer in norm_layers(net).items():
        _refuse_hooked(name, layer)
    net = copy.deepcopy(net).eval()
    maps = [(layer, layer.plain()) for layer in norm_layers(net).values()]
    for layer, (factor, summand) in maps:
        if isinstance(layer, ChannelNorm):
            _to_batch_norm(layer, factor, summand)
        else:
            _to_plain(layer, factor, summand)
    unhook(net)
    for module in net.modules():
        release_buffers(module)
    return net.eval()


def _refuse_hooked(name: str, layer: NormLayer) -> None:
    """A weight that a hook computes before each forward can neither be copied nor replaced."""
    if not isinstance(layer, ChannelNorm) and "weight" not in layer._parameters and not is_parametrized(layer):
        raise ValueError(
            f"the weight of {name!r} is computed by a hook: make it a parameter again before folding "
            "(torch.nn.utils.prune.remove(layer, 'weight'), remove_weight_norm, ...)"
        )


def _to_plain(layer: NormLayer, weight: Tensor, bias: Tensor) -> None:
    """Class, weight and bias of torch's own layer."""
    dtype = cast(Tensor, layer.weight).dtype
    plain = next(PLAIN[kind] for kind in type(layer).__mro__ if kind in PLAIN)
    _detach(layer)
    # torch's own way to remove a parametrization changes a class that copies share.
    layer._modules.pop("parametrizations", None)
    layer.__class__ = plain  # type: ignore[assignment]
    layer.weight = nn.Parameter(weight.to(dtype).clone())
    layer.bias = nn.Parameter(bias.to(dtype).clone())


def _to_batch_norm(layer: ChannelNorm, factor: Tensor, summand: Tensor) -> None:
    """A BatchNorm whose variance and eps add up to 1, with this affine map."""
    torchs = next(kind for kind in layer.bn_type.__mro__ if kind.__module__.startswith("torch.nn."))
    made = cast(_BatchNorm, torchs(factor.numel(), device=factor.device, dtype=factor.dtype))
    assert made.running_var is not None
    made.running_var.fill_(1 - made.eps)
    del layer.bn_type
    _detach(layer)
    layer.__class__ = type(made)  # type: ignore[assignment]
    hooks = {name: value for name, value in layer.__dict__.items() if "hook" in name}
    ours = layer.__dict__.get("bayesnorm_buffers")
    layer.__dict__.update(made.__dict__)
    layer.__dict__.update(hooks)
    if ours is not None:
        layer.__dict__["bayesnorm_buffers"] = ours
    layer.weight = nn.Parameter(factor.clone())
    layer.bias = nn.Parameter(summand.clone())


def _detach(layer: NormLayer) -> None:
    del layer.norm, layer.scale, layer.opening, layer.index, layer.origin
