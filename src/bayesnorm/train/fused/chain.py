"""Networks that are a chain of convolutions, for which all of a step has kernels of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from ..._sampling import runtimes
from ...layers import NormConv2d, NormLayer
from ...models.all_cnn import AllCNN
from ...moments.gaussian import leaky_relu
from ...norms import AnalyticNorm, BatchNorm, WeightNorm
from ...scales import BayesScale, NoiseScale, PointScale

NORMS = {"none": 0, "weight": 1, "analytic": 2, "batch": 3}
SCALES = {"plain": 0, "point": 1, "noise": 2, "bayes": 3}


@dataclass(frozen=True)
class Link:
    """One convolution: sizes of its input and output, and how it gets from one to the other."""

    inputs: int
    height: int
    width: int
    outputs: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    stride: int
    padding: int

    @property
    def length(self) -> int:
        """Numbers in the weight vector of a channel."""
        return self.inputs * self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Of its output."""
        return self.out_height * self.out_width


@dataclass(frozen=True)
class Chain:
    """Convolutions with leaky ReLUs between them, all normalized alike; the last is 1x1, then the mean over pixels.

    Arguments:
        links: the convolutions.
        slope: of the leaky ReLUs.
        norm: ``"none"``, ``"weight"``, ``"analytic"`` or ``"batch"``.
        scale: ``"plain"`` (a bias at most), ``"point"``, ``"noise"`` or ``"bayes"``.
        prior: std of the normal prior of a Bayesian scale.
        eps: of batch normalization.
        momentum: of its running averages.
    """

    links: tuple[Link, ...]
    slope: float
    norm: str
    scale: str
    prior: float = 1.0
    eps: float = 0.0
    momentum: float = 0.0


class NoChainError(ValueError):
    """The network is no such chain; the message says why."""


def convolutions(net: nn.Module) -> list[nn.Conv2d]:
    """The convolutions of a chain, in order."""
    return [module for module in net.modules() if isinstance(module, nn.Conv2d)]


def chain_of(net: nn.Module, image_size: tuple[int, ...]) -> Chain:
    """The chain that a network is, on images ``(C, H, W)``; :class:`NoChainError` if it is none."""
    layers = _body(net)
    slopes = set()
    convs: list[nn.Conv2d] = []
    for place, layer in enumerate(layers):
        if place % 2 == 0 and type(layer) in (nn.Conv2d, NormConv2d):
            convs.append(cast(nn.Conv2d, layer))
        elif place % 2 == 1 and type(layer) in (nn.LeakyReLU, nn.ReLU):
            slopes.add(float(getattr(layer, "negative_slope", 0.0)))
        else:
            raise NoChainError(f"{type(layer).__name__} stands where a convolution or a leaky ReLU is expected")
    if len(layers) % 2 == 0 or len(convs) < 3 or len(slopes) != 1:
        raise NoChainError("it is not convolutions with the same leaky ReLU between them")
    links = _links(convs, image_size)
    norm, scale = _kinds(convs)
    prior = _prior(convs) if scale == "bayes" else 1.0
    chain = Chain(links, slopes.pop(), norm, scale, prior, *(_averages(convs) if norm == "batch" else ()))
    if norm == "analytic":
        _check_moments(net, [cast(NormLayer, conv) for conv in convs], chain.slope)
    return chain


def _body(net: nn.Module) -> Sequence[nn.Module]:
    """The layers before the mean over pixels."""
    if any(nn.utils.parametrize.is_parametrized(module) for module in net.modules()):
        raise NoChainError("it is parametrized")
    if type(net) is AllCNN:
        return list(net.features)
    raise NoChainError(f"{type(net).__name__} is not known to be a chain of convolutions")


def _links(convs: Sequence[nn.Conv2d], image_size: tuple[int, ...]) -> tuple[Link, ...]:
    links = []
    channels, height, width = image_size
    for conv in convs:
        stride, padding = conv.stride, conv.padding
        plain = conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
        if not plain or not isinstance(padding, tuple) or len({*stride}) > 1 or len({*padding}) > 1:
            raise NoChainError(f"{conv} is not a plain convolution, alike in both directions")
        kernel = (conv.kernel_size[0], conv.kernel_size[1])
        out_height, out_width = (
            (size + 2 * padding[0] - k) // stride[0] + 1 for size, k in zip((height, width), kernel, strict=True)
        )
        outputs = conv.out_channels
        if conv.in_channels != channels or min(out_height, out_width) < 1:
            raise NoChainError(f"{conv} does not fit an input of {channels} x {height} x {width}")
        links.append(Link(channels, height, width, outputs, out_height, out_width, kernel, stride[0], padding[0]))
        channels, height, width = outputs, out_height, out_width
    if links[-1].kernel != (1, 1) or links[-1].stride != 1 or links[-1].padding != 0:
        raise NoChainError("its last convolution is not 1x1")
    return tuple(links)


def _kinds(convs: Sequence[nn.Conv2d]) -> tuple[str, str]:
    """Norm and scale of all layers."""
    check_scales(convs)
    found = {_kind(conv) for conv in convs}
    if len(found) > 1:
        raise NoChainError("its layers are not normalized alike")
    if any(p is not None and (not p.requires_grad or p.dtype != torch.float32) for c in convs for p in c.parameters()):
        raise NoChainError("not all of its parameters are trained, in float32")
    return found.pop()


def check_scales(convs: Sequence[nn.Conv2d]) -> None:
    """Behind a constant that is not scaled, half precision cannot tell what was: a scale may be drawn near 0."""
    scales = [conv.scale for conv in convs if isinstance(conv, NormLayer)]
    if any(bool(scale.offset.any()) for scale in scales if isinstance(scale, BayesScale)):
        raise NoChainError("a channel has a constant outside its scale: train it with --engine captured")


def _kind(conv: nn.Conv2d) -> tuple[str, str]:
    if not isinstance(conv, NormLayer):
        return "none", "plain"
    if conv.bias is not None:
        raise NoChainError("a normalized layer has a bias of its own")
    norms = {WeightNorm: "weight", AnalyticNorm: "analytic", BatchNorm: "batch"}
    scales = {PointScale: "point", NoiseScale: "noise", BayesScale: "bayes"}
    norm, scale = norms.get(type(conv.norm)), scales.get(type(conv.scale))
    if norm is None or scale is None:
        raise NoChainError(f"there are no such kernels for {type(conv.norm).__name__} and {type(conv.scale).__name__}")
    if isinstance(conv.norm, AnalyticNorm) and conv.norm.patch_cov is not None:
        raise NoChainError("its first layer normalizes by the covariance of patches")
    return norm, scale


def _prior(convs: Sequence[nn.Conv2d]) -> float:
    specs = {cast(BayesScale, conv.scale).spec for conv in convs}
    spec = specs.pop()
    if specs or isinstance(spec.prior, str) or spec.per_layer_variance or spec.stochastic_bias:
        raise NoChainError("its posterior is not the plain one: a variance per channel and a normal prior")
    return float(spec.prior)


def _averages(convs: Sequence[nn.Conv2d]) -> tuple[float, float]:
    """Eps and momentum of batch normalization."""
    found = {(norm.eps, norm.momentum) for norm in (cast(BatchNorm, conv.norm) for conv in convs)}
    ((eps, momentum),) = found if len(found) == 1 else [(0.0, None)]
    if momentum is None:
        raise NoChainError("its batch norms have no momentum, or are not alike")
    return eps, momentum


def _check_moments(net: nn.Module, layers: Sequence[NormLayer], slope: float) -> None:
    """The moment pass has to be the one that the kernels compute: from a layer's scale to the next layer's input."""
    with torch.no_grad():
        for before, layer in pairwise(layers):
            shift, square = before.scale.output_moments()
            found = layer.opening.runtime.statistics(layer.opening)[layer.index]
            for mine, its in zip(leaky_relu(shift, square, slope), found, strict=True):
                if mine.shape != its.shape or not torch.allclose(mine, its, rtol=1e-4, atol=1e-6):
                    raise NoChainError("its moment pass is another")


def input_moments(net: nn.Module, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the input channels, of an analytically normalized network."""
    (runtime,) = runtimes(net)
    assert runtime.program is not None
    ((mean, var),) = runtime.program.inputs
    return mean.get().reshape(-1).expand(channels), var.get().reshape(-1).expand(channels)
