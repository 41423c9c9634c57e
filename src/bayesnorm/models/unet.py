"""U-Net: a network for segmentation that everyone has trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._wire import InputStats
from ..norms import NormSpec
from ..scales import ScaleSpec
from ._normalized import normalized

CHANNELS = (64, 128, 256, 512, 1024)
STRIDE = 2 ** (len(CHANNELS) - 1)
"""Factor by which the deepest maps are smaller than the image."""


class DoubleConv(nn.Module):
    """Twice a 3x3 convolution and ReLU; the size is kept.

    Arguments:
        before: channels of the input ``(N, before, H, W)``.
        after: channels of the output ``(N, after, H, W)``.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Activations behind the second convolution."""
        return F.relu(self.conv2(F.relu(self.conv1(x), inplace=True)), inplace=True)


class Up(nn.Module):
    """Twice the size by a transposed 2x2 convolution, then the maps of that size from the way down beside it.

    Arguments:
        before: channels of the input ``(N, before, H, W)``.
        after: channels of the output ``(N, after, 2H, 2W)`` and of the maps from the way down.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(before, after, 2, stride=2)
        self.conv = DoubleConv(2 * after, after)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        """Activations of the larger size."""
        out: Tensor = self.conv(torch.cat([beside, self.up(x)], 1))
        return out


class UNet(nn.Module):
    """Four levels down by max-pooling and up again (Ronneberger et al., 2015), padded, log-softmax; no normalization.

    It trains as it is, from He's initialization. Height and width of an image have to be divisible by 16.

    Arguments:
        width: factor on the channels 64, 128, 256, 512, 1024.
        num_classes: outputs per pixel.
        in_channels: channels of the input ``(N, C, H, W)``.
    """

    def __init__(self, width: float = 1.0, num_classes: int = 2, in_channels: int = 1) -> None:
        super().__init__()
        if not width > 0:
            raise ValueError(f"width={width}: must be positive")
        first, *deeper = [max(1, round(channels * width)) for channels in CHANNELS]
        levels = list(zip([first, *deeper[:-1]], deeper, strict=True))
        self.first = DoubleConv(in_channels, first)
        self.downs = nn.ModuleList(DoubleConv(before, after) for before, after in levels)
        self.ups = nn.ModuleList(Up(after, before) for before, after in reversed(levels))
        self.last = nn.Conv2d(first, num_classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of each pixel ``(N, num_classes, H, W)``."""
        height, width = x.shape[2:]
        if height % STRIDE or width % STRIDE:
            raise ValueError(
                f"images of {height} x {width} (height x width) do not pass through the U-Net: both have to be "
                f"divisible by {STRIDE}; crop or pad them, or choose another network"
            )
        beside = [self.first(x)]
        for down in self.downs:
            beside.append(down(F.max_pool2d(beside[-1], 2)))
        maps = beside.pop()
        for up in self.ups:
            maps = up(maps, beside.pop())
        out: Tensor = self.last(maps)
        return out.log_softmax(1)


def unet(
    norm: str | NormSpec | None = "analytic",
    scale: str | ScaleSpec = "bayes",
    width: float = 1.0,
    num_classes: int = 2,
    in_channels: int = 1,
    input_stats: InputStats = None,
    example: Tensor | None = None,
) -> nn.Module:
    """The U-Net with a norm after each of its 18 convolutions and 4 transposed ones, s = 1 and b = 0.

    The 1x1 convolution at the end has none. ``norm=None`` is the plain network. ``input_stats`` and ``example`` are
    those of :func:`bayesnorm.convert`.

    >>> sum(p.numel() for p in unet(norm="batch", scale="point").parameters())
    31037506
    """
    net = UNet(width, num_classes, in_channels)
    return normalized(net, norm, scale, input_stats, example, (in_channels, 2 * STRIDE, 2 * STRIDE), "last")
