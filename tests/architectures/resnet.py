"""ResNet (He et al., 2015, arXiv:1512.03385): depths 18 (basic blocks) and 50 (bottlenecks)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, with one in-place ReLU module used at both activations."""

    expansion = 1

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(channels, planes, stride)

    @property
    def branch_end(self) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
        return self.conv2, self.bn2

    def forward(self, x: Tensor) -> Tensor:
        identity = self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, with functional ReLUs."""

    expansion = 4

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        out = planes * self.expansion
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample = _shortcut(channels, out, stride)

    @property
    def branch_end(self) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
        return self.conv3, self.bn3

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.downsample(x)
        return F.relu(out)


class ResNet(nn.Module):
    """Stem, four stages of residual blocks, average pooling and one linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        width: float = 1.0,
        classes: int = 10,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        channels = scaled(64, width)
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Sequential] = []
        blocks: list[BasicBlock | Bottleneck] = []
        for stage, depth in enumerate(depths):
            planes = scaled(64 * 2**stage, width)
            for i in range(depth):
                blocks.append(block(channels, planes, 2 if stage > 0 and i == 0 else 1))
                channels = planes * block.expansion
            stages.append(nn.Sequential(*blocks[-depth:]))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        he_initialize_(self, [b.branch_end[0] for b in blocks])
        if zero_init_residual:
            for b in blocks:
                nn.init.zeros_(b.branch_end[1].weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(width: float = 1.0, classes: int = 10, zero_init_residual: bool = False) -> ResNet:
    """ResNet-18: basic blocks (2, 2, 2, 2)."""
    return ResNet(BasicBlock, (2, 2, 2, 2), width, classes, zero_init_residual)


def resnet50(width: float = 1.0, classes: int = 10, zero_init_residual: bool = False) -> ResNet:
    """ResNet-50: bottlenecks (3, 4, 6, 3)."""
    return ResNet(Bottleneck, (3, 4, 6, 3), width, classes, zero_init_residual)
