"""ShuffleNetV2 (Ma et al., 2018, arXiv:1807.11164), 1x configuration: stages of (4, 8, 4) units."""

import torch
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled

STAGES = ((116, 4), (232, 8), (464, 4))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleaves the channels of the groups."""
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def _pointwise(channels: int, out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
    return [conv, nn.BatchNorm2d(channels)]


class ShuffleUnit(nn.Module):
    """Splits the channels at stride 1, duplicates the input at stride 2; the branches are concatenated and shuffled."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        half = out // 2
        self.stride = stride
        branch_channels = channels if stride > 1 else half
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1.extend([*_depthwise(channels, stride), *_pointwise(channels, half)])
        self.branch2 = nn.Sequential(
            *_pointwise(branch_channels, half), *_depthwise(half, stride), *_pointwise(half, half)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    """ShuffleNetV2: stem, three stages of shuffle units and a pointwise convolution before pooling."""

    def __init__(self, width: float = 1.0, classes: int = 10) -> None:
        super().__init__()
        channels = scaled(24, width)
        self.conv1 = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Sequential] = []
        for stage_channels, depth in STAGES:
            out = scaled(stage_channels, width, divisor=4)
            units = [ShuffleUnit(channels, out, 2), *(ShuffleUnit(out, out, 1) for _ in range(depth - 1))]
            stages.append(nn.Sequential(*units))
            channels = out
        self.stage2, self.stage3, self.stage4 = stages
        last = scaled(1024, width)
        self.conv5 = nn.Sequential(*_pointwise(channels, last))
        self.fc = nn.Linear(last, classes)
        # One of the three convolutions of a unit follows no ReLU, so that two halvings are to be made up for.
        he_initialize_(self, gain=2.0 ** (1 / 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        x = self.conv5(self.stage4(self.stage3(self.stage2(x))))
        return self.fc(x.mean([2, 3]))
