"""MobileNetV2 (Sandler et al., 2018, arXiv:1801.04381), 17 blocks, and MobileNetV3-small, 11 blocks.

The latter is due to Howard et al., 2019, arXiv:1905.02244.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled

# Expansion factor, output channels, blocks, stride of the first block.
V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# Kernel, expanded channels, output channels, squeeze-and-excitation, hard swish, stride.
V3_SMALL_BLOCKS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


class ConvBN(nn.Sequential):
    """Convolution, BN and activation; no activation when `activation` is None."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: Callable[..., nn.Module] | None = nn.ReLU6,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        padding = (kernel - 1) // 2
        super().__init__(
            nn.Conv2d(channels, out, kernel, stride=stride, padding=padding, groups=groups, bias=False), norm(out)
        )
        if activation is not None:
            self.append(activation(inplace=True))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and linear projection, added to the input where the shapes agree."""

    def __init__(self, channels: int, out: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = channels * expansion
        self.conv = nn.Sequential()
        if expansion != 1:
            self.conv.append(ConvBN(channels, hidden, 1))
        self.conv.append(ConvBN(hidden, hidden, 3, stride=stride, groups=hidden))
        self.conv.append(ConvBN(hidden, out, 1, activation=None))
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2: 17 inverted residual blocks."""

    def __init__(self, width: float = 1.0, classes: int = 10, dropout: float = 0.2) -> None:
        super().__init__()
        channels = scaled(32, width)
        self.features = nn.Sequential(ConvBN(3, channels, 3, stride=2))
        for expansion, stage_channels, depth, stride in V2_STAGES:
            out = scaled(stage_channels, width)
            for i in range(depth):
                self.features.append(InvertedResidual(channels, out, expansion, stride if i == 0 else 1))
                channels = out
        last = scaled(1280, width)
        self.features.append(ConvBN(channels, last, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = nn.functional.adaptive_avg_pool2d(x, (1, 1))
        return self.classifier(torch.flatten(x, 1))


class SqueezeExcite(nn.Module):
    """Channel gates by a hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = scaled(channels, 0.25)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x


def _norm_v3(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class InvertedResidualV3(nn.Module):
    """Inverted residual block with optional expansion and squeeze-and-excitation."""

    def __init__(
        self, channels: int, hidden: int, out: int, kernel: int, stride: int, expand: bool, excite: bool, swish: bool
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        self.block = nn.Sequential()
        if expand:
            self.block.append(ConvBN(channels, hidden, 1, activation=activation, norm=_norm_v3))
        self.block.append(ConvBN(hidden, hidden, kernel, stride, hidden, activation, _norm_v3))
        if excite:
            self.block.append(SqueezeExcite(hidden))
        self.block.append(ConvBN(hidden, out, 1, activation=None, norm=_norm_v3))
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.residual:
            result += x
        return result


class MobileNetV3Small(nn.Module):
    """MobileNetV3-small: 11 inverted residual blocks."""

    def __init__(self, width: float = 1.0, classes: int = 10, dropout: float = 0.2) -> None:
        super().__init__()
        previous = 16
        self.features = nn.Sequential(
            ConvBN(3, scaled(previous, width), 3, stride=2, activation=nn.Hardswish, norm=_norm_v3)
        )
        for kernel, hidden, out, excite, swish, stride in V3_SMALL_BLOCKS:
            channels, expand = scaled(previous, width), hidden != previous
            self.features.append(
                InvertedResidualV3(
                    channels,
                    scaled(hidden, width) if expand else channels,
                    scaled(out, width),
                    kernel,
                    stride,
                    expand,
                    excite,
                    swish,
                )
            )
            previous = out
        last, hidden = scaled(576, width), scaled(1024, width)
        self.features.append(ConvBN(scaled(previous, width), last, 1, activation=nn.Hardswish, norm=_norm_v3))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(last, hidden), nn.Hardswish(inplace=True), nn.Dropout(dropout), nn.Linear(hidden, classes)
        )
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(x.flatten(1))
