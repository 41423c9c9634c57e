"""DenseNet (Huang et al., 2016, arXiv:1608.06993): DenseNet-121, dense blocks of (6, 12, 24, 16) layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled

BLOCKS = (6, 12, 24, 16)
BOTTLENECK = 4


class DenseLayer(nn.Module):
    """BN, ReLU, 1x1 convolution, BN, ReLU, 3x3 convolution over the concatenation of all earlier features."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, BOTTLENECK * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK * growth)
        self.conv2 = nn.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)
        self.dropout = dropout

    def forward(self, features: list[Tensor]) -> Tensor:
        out = self.conv1(F.relu(self.norm1(torch.cat(features, 1))))
        out = self.conv2(F.relu(self.norm2(out)))
        return F.dropout(out, p=self.dropout, training=self.training)


class DenseBlock(nn.ModuleList):
    """Layers that each receive the list of the features of all layers before them."""

    def __init__(self, depth: int, channels: int, growth: int, dropout: float) -> None:
        super().__init__(DenseLayer(channels + i * growth, growth, dropout) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self:
            features.append(layer(features))
        return torch.cat(features, 1)


class Transition(nn.Module):
    """Halves the channels by a 1x1 convolution and the resolution by average pooling."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, out, 1, bias=False)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.conv(F.relu(self.norm(x))))


class DenseNet121(nn.Module):
    """Stem, four dense blocks with transitions between them, a final norm and one linear layer."""

    def __init__(self, width: float = 1.0, classes: int = 10, dropout: float = 0.1) -> None:
        super().__init__()
        growth = scaled(32, width, divisor=4)
        channels = 2 * growth
        self.conv0 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm0 = nn.BatchNorm2d(channels)
        stages: list[nn.Module] = []
        for i, depth in enumerate(BLOCKS):
            stages.append(DenseBlock(depth, channels, growth, dropout))
            channels += depth * growth
            if i + 1 < len(BLOCKS):
                stages.append(Transition(channels, channels // 2))
                channels //= 2
        self.stages = nn.Sequential(*stages)
        self.norm = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, classes)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm0(self.conv0(x)))
        x = self.stages(F.max_pool2d(x, 3, stride=2, padding=1))
        x = F.relu(self.norm(x))
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
