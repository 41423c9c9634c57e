"""The fully convolutional network of the paper's cell segmentation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .._wire import InputStats
from ..moments.core import is_eager, without_autocast
from ..norms import NormSpec
from ..scales import ScaleSpec
from ._normalized import normalized

CHANNELS = (64, 32, 16, 8, 4)
KERNEL = 9
WRONG_AVERAGES = ("cuda",)
"""Devices whose averages are not to be trusted in channels last. A CPU would lose a sixth of a step by the copies."""
FEW = 32
"""Channels, fewer of which a CPU normalizes faster in the usual order and copies back than where they are."""
Activation = Literal["leaky_relu", "softmax", "softplus"]


class CellNet(nn.Module):
    """Five pairs of 9x9 convolutions, each pair with an average over 3x3 behind it, a 1x1 convolution, log-softmax.

    Every layer keeps the size of the image. The averages have stride 1 and leave the padding out, so that a map has the
    same mean at the border as inside.

    Arguments:
        activation: ``"leaky_relu"`` (slope 0.01), ``"softmax"`` over the channels (the paper's) or ``"softplus"``.
        final_activation: also behind the last convolution, as the paper prints it; with a softmax there no
            probability of two classes exceeds 0.731.
        width: factor on the channels 64, 64, 32, 32, 16, 16, 8, 8, 4, 4.
        num_classes: outputs per pixel.
        in_channels: channels of the input ``(N, C, H, W)``.
    """

    def __init__(
        self,
        activation: Activation = "leaky_relu",
        final_activation: bool = False,
        width: float = 1.0,
        num_classes: int = 2,
        in_channels: int = 1,
    ) -> None:
        super().__init__()
        if activation not in ("leaky_relu", "softmax", "softplus"):
            raise ValueError(f"activation={activation!r}: choose 'leaky_relu', 'softmax' or 'softplus'")
        if not width > 0:
            raise ValueError(f"width={width}: must be positive")
        widths = [max(1, round(channels * width)) for channels in CHANNELS]
        if activation == "softmax" and min(widths) < 2:
            raise ValueError(
                f"width={width}: the softmax of a single channel is constant, choose width >= 0.4 or another activation"
            )
        layers: list[nn.Module] = []
        before = in_channels
        for after in widths:
            for _ in range(2):
                layers += [nn.Conv2d(before, after, KERNEL, padding=KERNEL // 2), _activation(activation)]
                before = after
            layers.append(_Average(3, stride=1, padding=1, count_include_pad=False))
        layers.append(nn.Conv2d(before, num_classes, 1))
        if final_activation:
            layers.append(_activation(activation, last=True))
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of each pixel ``(N, num_classes, H, W)``."""
        maps: Tensor = self.features(x)
        return maps.log_softmax(1)


class _Average(nn.AvgPool2d):
    """Of contiguous maps, where torch has wrong gradients of padded averages in channels last (issue 188344)."""

    def forward(self, input: Tensor) -> Tensor:
        """The average around each pixel."""
        if input.device.type in WRONG_AVERAGES:
            # Not contiguous(), to which maps of one channel are so in either order.
            input = input.clone(memory_format=torch.contiguous_format)
        return super().forward(input)


class _Softmax(nn.Softmax):
    """Over the channels, in the dtype and order of its maps.

    Under autocast torch's is in single precision on CUDA, and in the usual order whatever that of its argument is,
    after which each layer up to the next convolution is, too.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, input: Tensor) -> Tensor:
        """The softmax at each pixel."""
        with without_autocast(input.device.type):
            if input.dim() != 4 or not is_eager() or input.stride(1) != 1:
                return super().forward(input)
            if input.size(1) >= FEW or input.device.type != "cpu":
                return input.movedim(1, -1).softmax(-1).movedim(-1, 1)
            return super().forward(input).contiguous(memory_format=torch.channels_last)


class _Softplus(nn.Softplus):
    """In the dtype of its maps: under autocast torch's is in single precision on CUDA, up to the next convolution."""

    def forward(self, input: Tensor) -> Tensor:
        """The softplus of each number."""
        with without_autocast(input.device.type):
            return super().forward(input)


def _activation(name: Activation, last: bool = False) -> nn.Module:
    """The last is torch's, as probabilities are made of it."""
    if name == "softmax":
        return nn.Softmax(1) if last else _Softmax()
    if name == "softplus":
        return nn.Softplus() if last else _Softplus()
    return nn.LeakyReLU(0.01, inplace=True)


def cell_net(
    norm: str | NormSpec | None = "analytic",
    scale: str | ScaleSpec = "bayes",
    activation: Activation = "leaky_relu",
    final_activation: bool = False,
    width: float = 1.0,
    num_classes: int = 2,
    in_channels: int = 1,
    input_stats: InputStats = None,
    example: Tensor | None = None,
) -> nn.Module:
    """The cell network with a norm after every convolution, the 1x1 included (``norm=None``: plain), s = 1 and b = 0.

    ``input_stats`` and ``example`` are those of :func:`bayesnorm.convert`. Start training from
    :func:`bayesnorm.init_from_data_` with every norm but batch: neighbouring pixels of a 9x9 response are so much alike
    that an average over 3x3 keeps more than half of the variance, not the ninth that the analytic norm reckons with,
    and the outputs grow with each pair (to a std of 50 and more); with weight norm, or none, they shrink.

    >>> sum(p.numel() for p in cell_net().parameters())
    668198
    """
    net = CellNet(activation, final_activation, width, num_classes, in_channels)
    return normalized(net, norm, scale, input_stats, example, (in_channels, 32, 32))
