"""Data-dependent initialization."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from ._modes import mode
from ._sampling import runtimes
from .layers import NormLayer, norm_layers, normalized_class
from .moments.core import mean_var, wide
from .moments.program import channel_axis
from .norms import BatchNorm


@torch.no_grad()
def init_from_data_(net: nn.Module, x: Tensor) -> None:
    """Set each layer, in one forward pass, so that its output has mean 0 and variance 1 on this batch.

    Changes s and b of weight-normalized layers, the constants of analytically normalized ones (which get s = 1, b = 0),
    and of a network without any, weight and bias of its convolutions and linear layers. Batch norm is left alone.
    A Bayesian scale starts anew with sigma ``sigma_init * s``; a plain layer without a bias gets variance 1 only.

    Arguments:
        x: a batch of inputs; the paper uses 128.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"init_from_data_ takes a batch as one tensor, not {type(x).__name__}")
    if len(x) == 0:
        raise ValueError(f"init_from_data_: x of shape {tuple(x.shape)} holds no input: pass a batch")
    normalized: list[nn.Module] = [m for m in norm_layers(net).values() if not isinstance(m.norm, BatchNorm)]
    plain = [m for m in net.modules() if normalized_class(m) is not None]
    networks = runtimes(net)
    done: set[nn.Module] = set()

    def once(layer: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if layer in done:
            return None
        done.add(layer)
        return _standardize(layer, output)

    handles = [m.register_forward_hook(once) for m in (normalized if networks else plain)]
    try:
        for runtime in networks:
            runtime.apart = True
        with mode(net, False):
            net(x)
    finally:
        for handle in handles:
            handle.remove()
        for runtime in networks:
            runtime.apart = False


def _standardize(layer: nn.Module, output: Tensor) -> Tensor:
    channels = channel_axis(layer, output.dim())
    mean, var = mean_var(wide(output), channels)
    std = torch.where(var > 0, var, 1.0).sqrt()
    if isinstance(layer, NormLayer):
        gain, shift = layer.scale.folded()
        if layer.norm.forgets_input:
            # The statistics go into the constants of the norm: what the layer hands on, (0, 1), is then true.
            gain = torch.where(gain != 0, gain, 1.0)  # a negative one makes a negative spread
            layer.norm.center.add_((mean - shift) / gain * layer.norm.spread)
            layer.norm.spread.mul_(std / gain)
            layer.scale.set_(torch.ones_like(gain), torch.zeros_like(shift))
        else:
            layer.scale.set_(gain / std, (shift - mean) / std)
    else:
        weight, bias = cast(Tensor, layer.weight), cast(Tensor | None, layer.bias)
        cast(type[NormLayer], normalized_class(layer)).geometry_of(layer).scale_(weight, (1 / std).to(weight.dtype))
        mean = torch.zeros_like(mean) if bias is None else mean
        if bias is not None:
            bias.copy_((bias - mean) / std)
    shape = [1] * output.dim()
    shape[channels] = -1
    return ((output - mean.view(shape)) / std.view(shape)).to(output.dtype)
