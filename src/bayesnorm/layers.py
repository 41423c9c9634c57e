"""Normalized layers: a norm and a scale around torch's own convolution or linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._affine import scaled
from ._scope import Scope
from .moments.core import Moments, wide, without_autocast
from .moments.merged import Joined
from .moments.program import Propagating, as_vectors, channel_axis
from .norms import BatchNorm, Norm
from .norms.geometry import Geometry
from .runtime import Opening
from .scales import BayesScale, Scale, together


class NormLayer(Propagating):
    """``y = scale((w.x - mu_hat(w)) / sigma_hat(w))``, channels on axis 1 (linear layers: last).

    Weight and analytic normalization are a reparametrization: the response is computed with the effective weight
    ``w / sigma_hat`` and bias ``-mu_hat / sigma_hat``, and only a random scale touches the activations. In evaluation
    mode nothing does.
    """

    norm: Norm
    scale: Scale
    opening: Opening
    index: int
    origin: str

    def attach(self, norm: Norm, scale: Scale, origin: str) -> None:
        """Take a norm and a scale; ``origin`` names the BatchNorm that stood behind this layer, if any."""
        self.norm = norm
        self.scale = scale
        self.origin = origin

    def number_(self, index: int) -> None:
        """Take a number that no other layer of the network has; it selects the layer's part of the noise stream."""
        self.index = index
        self.scale.number_(index)

    @property
    def wants_moments(self) -> bool:  # type: ignore[override]
        """Whether the norm uses the moments of this layer's input."""
        return self.norm.wants_moments

    @property
    def forgets_input(self) -> bool:  # type: ignore[override]
        """Whether the output has known moments whatever comes in."""
        return self.norm.forgets_input

    @property
    def is_random(self) -> bool:
        """Whether the scale draws."""
        return self.scale.is_random

    @property
    def columns(self) -> Tensor:
        """This layer's part of the noise stream."""
        assert self.scale.columns is not None
        return self.scale.columns

    @classmethod
    def geometry_of(cls, module: nn.Module) -> Geometry:
        """Layout of the weight of a layer that is, or could become, of this class."""
        return Geometry()

    @property
    def geometry(self) -> Geometry:
        """Layout of the weight."""
        return self.geometry_of(self)

    def weight_vectors(self) -> Tensor | None:
        """The weight in float32 or better, as the statistics are computed from it."""
        return wide(cast(Tensor, self.weight))

    def respond(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        """torch's own layer with this weight and bias."""
        raise NotImplementedError

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Normalize, scale; draw the scale in training mode and inside :func:`bayesnorm.sampling`."""
        x = input
        scope = self.opening.current(x)
        sampling = scope.draws_for(self)
        gain, shift = self.scale.inner() if sampling else self.scale.folded()
        if isinstance(self.norm, BatchNorm) and self.norm.training:
            y = self._respond_to_batch(x, gain, shift, args, kwargs)
        else:
            with without_autocast(x.device.type):
                weight, bias = self._effective(scope, gain, shift)
            y = self.respond(x, weight, bias, *args, **kwargs)
        return self._randomize(y, scope) if sampling else y

    def _effective(self, scope: Scope, gain: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weight and bias of the plain layer that computes ``z * gain + shift``."""
        weight, moments = self.weight_vectors(), scope.statistics.get(self.index)
        if weight is not None:
            factor, offset = self.norm.effective(weight, self.geometry, moments, gain)
        else:
            factor, offset = self.norm.normalizer(weight, self.geometry, moments)
            if gain is not None:
                factor, offset = factor * gain, offset * gain
        return factor, offset if shift is None else offset + shift

    def _respond_to_batch(self, x: Tensor, gain: Tensor | None, shift: Tensor | None, args: Any, kwargs: Any) -> Tensor:
        norm = cast(BatchNorm, self.norm)
        weight = self.weight_vectors()
        with without_autocast(x.device.type):
            factor = norm.unit(weight, self.geometry)
            unit = factor if weight is None else self.geometry.scaled(weight, factor)
        y = self.respond(x, unit, None, *args, **kwargs)
        axis = channel_axis(self, y.dim())
        if axis == 1:
            return cast(Tensor, norm(y, gain, shift))
        return cast(Tensor, norm(y.flatten(0, -2), gain, shift)).view_as(y)

    def _randomize(self, y: Tensor, scope: Scope) -> Tensor:
        """``y A + B``, one draw per sample and channel; the first random layer of a batched call expands."""
        if y.is_nested:
            raise ValueError(
                f"{type(self).__name__}: a nested tensor, whose samples differ in length, has no noise: pass "
                "enable_nested_tensor=False to torch's TransformerEncoder"
            )
        if y.dim() < 2:
            raise ValueError(
                f"{type(self).__name__}: an output of shape {tuple(y.shape)}: pass a batch, also of one sample"
            )
        axis = channel_axis(self, y.dim())
        factor, summand = self._drawn(scope, y)
        shape = [1] * y.dim()
        shape[axis] = y.size(axis)
        summand = summand.to(y.dtype).reshape(-1, *shape[1:]) if summand.dim() > 1 else summand.to(y.dtype).view(shape)
        factor = factor.to(y.dtype).reshape(-1, *shape[1:])
        batch, rows = y.size(0), factor.size(0)
        if not scope.expand:
            return scaled(y, factor, summand)
        scope.expand = False
        factor = factor.unflatten(0, (rows // batch, batch))
        summand = summand.unflatten(0, (-1, batch)) if summand.size(0) == rows else summand
        return torch.addcmul(summand, y, factor).flatten(0, 1)

    def _drawn(self, scope: Scope, y: Tensor) -> tuple[Tensor, Tensor]:
        """Factor and summand of the random scale, one row per sample."""
        known = scope.factors.get(self.index)
        if known is not None and isinstance(self.scale, BayesScale):
            return scope.matched(known, y.size(0)), self.scale.offset
        draws = scope.draw(self, y.size(0))
        with without_autocast(y.device.type):
            return self.scale.outer(draws)

    def factors(self, layers: Sequence[NormLayer], drawn: Tensor) -> dict[int, Tensor]:
        """Drawn scales of those layers whose scales are of one kind, by the layer's number.

        Arguments:
            drawn: standard normal draws of all layers, one after the other.
        """
        parts = drawn.split([layer.columns.numel() for layer in layers], dim=1)
        found = {}
        for places in together.alike([layer.scale for layer in layers]):
            members = [layers[place] for place in places]
            draws = drawn if len(members) == len(layers) else torch.cat([parts[place] for place in places], 1)
            made = together.factors([cast(BayesScale, layer.scale) for layer in members], draws)
            found.update({layer.index: factor for layer, factor in zip(members, made, strict=True)})
        return found

    @staticmethod
    def together(layers: Sequence[NormLayer], sizes: Sequence[Sequence[int]]) -> Joined | None:
        """``(shift, gain^2)`` of the mean scales of several layers that forget their inputs."""
        found = together.output_moments([layer.scale for layer in layers])
        if found is None:
            return None
        shapes = [[1] * len(size) for size in sizes]
        for layer, shape in zip(layers, shapes, strict=True):
            shape[channel_axis(layer, len(shape))] = layer.scale.s.numel()
        return Joined(*found, shapes)

    def output_moments(self, m: Moments | None, size: Sequence[int]) -> Moments:
        """``(shift, gain^2)`` of the mean scales; after weight norm the linear rule, then the affine map."""
        shape = [1] * len(size)
        shape[channel_axis(self, len(size))] = -1
        mean, var = (wide(t) for t in self.scale.output_moments())
        if not self.forgets_input:
            assert m is not None
            mean, var = self._affine_moments(m, mean, var)
        return Moments(mean.reshape(shape), var.reshape(shape))

    def _affine_moments(self, m: Moments, shift: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight_vectors()
        mean, var = as_vectors(m, self)
        if weight is not None:
            mean, var = self.geometry.moments(weight, mean, var)
        factor, offset = self.norm.normalizer(weight, self.geometry, None)
        gain = self.scale.folded()[0]
        return (mean * factor + offset) * gain + shift, var * factor**2 * square

    def plain(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the plain layer with the same evaluation output (a channel norm: factor and summand)."""
        runtime = self.opening.runtime
        return self._effective(Scope(runtime.statistics(self.opening)), *self.scale.folded())


class _NormConv(NormLayer):
    transposed_layout = False

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As :meth:`NormLayer.forward`, on a batch."""
        if input.dim() != len(cast(nn.Conv2d, self).kernel_size) + 2:
            size = tuple(input.shape)
            raise ValueError(f"{type(self).__name__}: an input of shape {size}: pass a batch (N, C, ...), also of one")
        return super().forward(input, *args, **kwargs)

    @classmethod
    def geometry_of(cls, module: nn.Module) -> Geometry:
        """Groups, direction and stride of the convolution."""
        conv = cast(nn.Conv2d, module)
        return Geometry(conv.groups, cls.transposed_layout, conv.stride, conv.dilation)

    def respond(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        """The convolution."""
        dtype = cast(Tensor, self.weight).dtype
        bias = None if bias is None else bias.to(dtype)
        y: Tensor = cast(nn.Conv2d, self)._conv_forward(x, weight.to(dtype), bias)
        return y


class NormConv1d(_NormConv, nn.Conv1d):
    """Normalized :class:`torch.nn.Conv1d`."""


class NormConv2d(_NormConv, nn.Conv2d):
    """Normalized :class:`torch.nn.Conv2d`."""


class NormConv3d(_NormConv, nn.Conv3d):
    """Normalized :class:`torch.nn.Conv3d`."""


class _NormConvTranspose(_NormConv):
    transposed_layout = True

    def respond(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        """The transposed convolution."""
        conv = cast(nn.ConvTranspose2d, self)
        spatial = len(conv.kernel_size)
        padding = cast(tuple[int, ...], conv.padding)
        output_padding = conv._output_padding(
            x,
            output_size,
            list(conv.stride),
            list(padding),
            list(conv.kernel_size),
            spatial,
            list(conv.dilation),
        )
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
        dtype = conv.weight.dtype
        bias = None if bias is None else bias.to(dtype)
        y: Tensor = function(
            x, weight.to(dtype), bias, conv.stride, padding, output_padding, conv.groups, conv.dilation
        )
        return y


class NormConvTranspose1d(_NormConvTranspose, nn.ConvTranspose1d):
    """Normalized :class:`torch.nn.ConvTranspose1d`."""


class NormConvTranspose2d(_NormConvTranspose, nn.ConvTranspose2d):
    """Normalized :class:`torch.nn.ConvTranspose2d`."""


class NormConvTranspose3d(_NormConvTranspose, nn.ConvTranspose3d):
    """Normalized :class:`torch.nn.ConvTranspose3d`."""


class NormLinear(NormLayer, nn.Linear):
    """Normalized :class:`torch.nn.Linear`."""

    def respond(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        """The linear map."""
        dtype = self.weight.dtype
        return F.linear(x, weight.to(dtype), None if bias is None else bias.to(dtype))


class ChannelNorm(NormLayer):
    """A normalization that follows no convolution of its own: it normalizes its input channel by channel."""

    bn_type: type[nn.Module]
    """The BatchNorm that stood here, and that stands here again after folding."""

    def weight_vectors(self) -> Tensor | None:
        """There is none: the statistics are the input's own."""
        return None

    def respond(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        """``x * weight + bias`` per channel."""
        shape = [1] * x.dim()
        shape[1] = -1
        weight = weight.to(x.dtype).view(shape)
        return x * weight if bias is None else torch.addcmul(bias.to(x.dtype).view(shape), x, weight)

    def extra_repr(self) -> str:
        """Number of channels."""
        return f"{self.scale.s.numel()}"


NORMALIZED: dict[type[nn.Module], type[NormLayer]] = {
    nn.Conv1d: NormConv1d,
    nn.Conv2d: NormConv2d,
    nn.Conv3d: NormConv3d,
    nn.ConvTranspose1d: NormConvTranspose1d,
    nn.ConvTranspose2d: NormConvTranspose2d,
    nn.ConvTranspose3d: NormConvTranspose3d,
    nn.Linear: NormLinear,
}
PLAIN = {normalized: plain for plain, normalized in NORMALIZED.items()}


def normalized_class(module: nn.Module) -> type[NormLayer] | None:
    """What a plain layer becomes: torch's own layers, and subclasses that compute the same from the same weight."""
    if nn.utils.parametrize.is_parametrized(module):
        return None
    for plain, normalized in NORMALIZED.items():
        if isinstance(module, plain):
            methods = [name for name in ("forward", "_conv_forward", "_output_padding") if hasattr(plain, name)]
            same = all(getattr(type(module), name) is getattr(plain, name) for name in methods)
            return normalized if same else None
    return None


def norm_layers(net: nn.Module) -> dict[str, NormLayer]:
    """All normalized layers of a network by name, in order."""
    return {name: module for name, module in net.named_modules() if isinstance(module, NormLayer)}
