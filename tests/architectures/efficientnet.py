"""EfficientNet (Tan and Le, 2019, arXiv:1905.11946): EfficientNet-B0, 16 mobile inverted bottleneck blocks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .stochastic_depth import StochasticDepth
from .width import scaled

# Expansion factor, kernel, stride of the first block, output channels, blocks.
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class SqueezeExcite(nn.Module):
    """Channel gates by a sigmoid."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.expand(gate))


class MBConv(nn.Module):
    """Expansion, depthwise convolution, squeeze-and-excitation and linear projection, with stochastic depth."""

    def __init__(self, channels: int, out: int, expansion: int, kernel: int, stride: int, drop: float) -> None:
        super().__init__()
        hidden = channels * expansion
        self.expand = nn.Sequential()
        if expansion != 1:
            self.expand.extend([nn.Conv2d(channels, hidden, 1, bias=False), _norm(hidden), nn.SiLU(inplace=True)])
        self.depthwise = nn.Conv2d(
            hidden, hidden, kernel, stride=stride, padding=kernel // 2, groups=hidden, bias=False
        )
        self.norm = _norm(hidden)
        self.excite = SqueezeExcite(hidden, max(1, channels // 4))
        self.project = nn.Conv2d(hidden, out, 1, bias=False)
        self.project_norm = _norm(out)
        self.drop = StochasticDepth(drop)
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        out = self.expand(x)
        out = self.excite(F.silu(self.norm(self.depthwise(out))))
        out = self.project_norm(self.project(out))
        return self.drop(out) + x if self.residual else out


class EfficientNetB0(nn.Module):
    """EfficientNet-B0, with the drop rate growing linearly over the blocks."""

    def __init__(
        self, width: float = 1.0, classes: int = 10, dropout: float = 0.2, stochastic_depth: float = 0.2
    ) -> None:
        super().__init__()
        channels = scaled(32, width)
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False), _norm(channels), nn.SiLU(inplace=True)
        )
        depth = sum(stage[-1] for stage in STAGES)
        self.blocks = nn.ModuleList()
        for expansion, kernel, stride, stage_channels, repeats in STAGES:
            out = scaled(stage_channels, width)
            for i in range(repeats):
                drop = stochastic_depth * len(self.blocks) / depth
                self.blocks.append(MBConv(channels, out, expansion, kernel, stride if i == 0 else 1, drop))
                channels = out
        last = scaled(1280, width)
        self.head = nn.Sequential(nn.Conv2d(channels, last, 1, bias=False), _norm(last), nn.SiLU(inplace=True))
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(last, classes)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = self.head(x).mean((2, 3))
        return self.classifier(self.dropout(x))
