"""RegNetY (Radosavovic et al., 2020, arXiv:2003.13678): RegNetY-400MF, stages of (1, 3, 6, 6) blocks."""

from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled

STAGES = ((48, 1), (104, 3), (208, 6), (440, 6))
GROUP_WIDTH = 8


class YBlock(nn.Module):
    """1x1, grouped 3x3 with squeeze-and-excitation and 1x1 convolutions, with bottleneck ratio one."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        squeezed = max(1, channels // 4)
        self.a = nn.Sequential(nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))
        self.b = nn.Sequential(
            nn.Conv2d(out, out, 3, stride=stride, padding=1, groups=out // GROUP_WIDTH, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d((1, 1)),
            nn.Conv2d(out, squeezed, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(squeezed, out, 1),
            nn.Sigmoid(),
        )
        self.c_conv = nn.Conv2d(out, out, 1, bias=False)
        self.c_bn = nn.BatchNorm2d(out)
        self.proj: nn.Sequential | None = None
        if stride != 1 or channels != out:
            self.proj = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.b(self.a(x))
        out = out.mul(self.se(out))
        out = self.c_bn(self.c_conv(out))
        return self.relu(out.add(x if self.proj is None else self.proj(x)))


class RegNetY400MF(nn.Module):
    """Strided stem, four stages of Y blocks, average pooling and one linear layer."""

    def __init__(self, width: float = 1.0, classes: int = 10) -> None:
        super().__init__()
        channels = scaled(32, width)
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )
        blocks: list[YBlock] = []
        for stage_channels, depth in STAGES:
            out = scaled(stage_channels, width, divisor=GROUP_WIDTH)
            for i in range(depth):
                blocks.append(YBlock(channels, out, 2 if i == 0 else 1))
                channels = out
        self.trunk = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        he_initialize_(self, [b.c_conv for b in blocks])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(self.stem(x)))
