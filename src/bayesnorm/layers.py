"""Normalized layers: a norm and a scale around torch's own convolution or linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .moments.core import Moments
from .moments.program import Propagating, channel_axis
from .norms import BatchNorm, Norm
from .norms.geometry import Geometry
from .runtime import Opening, Scope
from .scales import Scale

HALF = (torch.float16, torch.bfloat16)


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

    def attach(self, norm: Norm, scale: Scale, index: int, origin: str) -> None:
        """Take a norm and a scale; ``origin`` names the BatchNorm that stood behind this layer, if any."""
        self.norm = norm
        self.scale = scale
        self.index = index
        self.origin = origin

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
        weight = cast(Tensor, self.weight)
        return weight.float() if weight.dtype in HALF else weight

    def respond(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, args: tuple[Any, ...]) -> Tensor:
        """torch's own layer with this weight and bias."""
        raise NotImplementedError

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        """Normalize, scale; draw the scale in training mode and inside :func:`bayesnorm.sampling`."""
        scope = self.opening.current(x)
        sampling = (
            self.is_random and scope.rows is not None and (self.training or self.opening.runtime.sampling is not None)
        )
        gain, shift = self.scale.inner() if sampling else self.scale.folded()
        if isinstance(self.norm, BatchNorm) and self.norm.training:
            y = self._respond_to_batch(x, gain, shift, args)
        else:
            with torch.autocast(x.device.type, enabled=False):
                weight, bias = self._effective(scope, gain, shift)
            y = self.respond(x, weight, bias, args)
        return self._randomize(y, scope) if sampling else y

    def _effective(self, scope: Scope, gain: Tensor | None, shift: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Weight and bias of the plain layer that computes ``z * gain + shift``."""
        weight = self.weight_vectors()
        factor, offset = self.norm.normalizer(weight, self.geometry, scope.statistics.get(self.index))
        if gain is not None:
            factor, offset = factor * gain, offset * gain
        if shift is not None:
            offset = offset + shift
        return (factor, offset) if weight is None else (self.geometry.scaled(weight, factor), offset)

    def _respond_to_batch(self, x: Tensor, gain: Tensor | None, shift: Tensor | None, args: tuple[Any, ...]) -> Tensor:
        norm = cast(BatchNorm, self.norm)
        weight = self.weight_vectors()
        with torch.autocast(x.device.type, enabled=False):
            factor = norm.unit(weight, self.geometry)
            unit = factor if weight is None else self.geometry.scaled(weight, factor)
        y = self.respond(x, unit, None, args)
        axis = channel_axis(self, y.dim())
        if axis == 1:
            return cast(Tensor, norm(y, gain, shift))
        return cast(Tensor, norm(y.flatten(0, -2), gain, shift)).view_as(y)

    def _randomize(self, y: Tensor, scope: Scope) -> Tensor:
        """``y A + B``, one draw per sample and channel; the first random layer of a batched call expands."""
        axis = channel_axis(self, y.dim())
        draws = scope.draw(self, y.size(0))
        with torch.autocast(y.device.type, enabled=False):
            factor, summand = self.scale.outer(draws)
        shape = [1] * y.dim()
        shape[axis] = y.size(axis)
        summand = summand.to(y.dtype).reshape(-1, *shape[1:]) if summand.dim() > 1 else summand.to(y.dtype).view(shape)
        factor = factor.to(y.dtype).reshape(-1, *shape[1:])
        batch, rows = y.size(0), factor.size(0)
        if rows == batch:
            return torch.addcmul(summand, y, factor)
        if rows % batch:
            raise ValueError(
                f"a batch of {batch} in a network that was called with {rows}: noise is drawn per sample, "
                "so the batch axis must stay first and keep its size (or a multiple of it)"
            )
        factor = factor.unflatten(0, (rows // batch, batch))
        summand = summand.unflatten(0, (-1, batch)) if summand.size(0) == rows else summand
        return torch.addcmul(summand, y, factor).flatten(0, 1)

    def output_moments(self, m: Moments | None, size: Sequence[int]) -> Moments:
        """``(shift, gain^2)`` of the mean scales; after weight norm the linear rule, then the affine map."""
        shape = [1] * len(size)
        shape[channel_axis(self, len(size))] = -1
        mean, var = self.scale.output_moments()
        if not self.forgets_input:
            assert m is not None
            mean, var = self._affine_moments(m, mean, var)
        return Moments(mean.reshape(shape), var.reshape(shape))

    def _affine_moments(self, m: Moments, shift: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        from .moments.program import as_vectors

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
        weight, bias = self._effective(Scope(runtime.statistics(self.opening)), *self.scale.folded())
        return cast(Tensor, weight), bias


class _NormConv(NormLayer):
    transposed_layout = False

    @classmethod
    def geometry_of(cls, module: nn.Module) -> Geometry:
        """Groups, direction and stride of the convolution."""
        return Geometry(cast(int, module.groups), cls.transposed_layout, cast(tuple[int, ...], module.stride))

    def respond(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, args: tuple[Any, ...]) -> Tensor:
        """The convolution."""
        assert weight is not None
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

    def respond(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, args: tuple[Any, ...]) -> Tensor:
        """The transposed convolution; ``args`` may hold torch's ``output_size``."""
        assert weight is not None
        conv = cast(nn.ConvTranspose2d, self)
        spatial = len(conv.kernel_size)
        padding = cast(tuple[int, ...], conv.padding)
        output_padding = conv._output_padding(
            x,
            args[0] if args else None,
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

    def respond(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, args: tuple[Any, ...]) -> Tensor:
        """The linear map."""
        assert weight is not None
        dtype = self.weight.dtype
        return F.linear(x, weight.to(dtype), None if bias is None else bias.to(dtype))


class ChannelNorm(NormLayer):
    """A normalization that follows no convolution of its own: it normalizes its input channel by channel."""

    bn_type: type[nn.Module]
    """The BatchNorm that stood here, and that stands here again after folding."""

    def weight_vectors(self) -> Tensor | None:
        """There is none: the statistics are the input's own."""
        return None

    def respond(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, args: tuple[Any, ...]) -> Tensor:
        """``x * weight + bias`` per channel."""
        assert weight is not None
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


def norm_layers(net: nn.Module) -> dict[str, NormLayer]:
    """All normalized layers of a network by name, in order."""
    return {name: module for name, module in net.named_modules() if isinstance(module, NormLayer)}
