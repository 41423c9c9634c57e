"""Pre-activation ResNet (He et al., 2016, arXiv:1603.05027), CIFAR form: depths 56 and 110 as 6n + 2."""

import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled


class PreActBlock(nn.Module):
    """Twice BN, ReLU and 3x3 convolution; a projection shortcut reads the activated input."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Conv2d(channels, out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        identity = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        return out + identity


class PreActResNet(nn.Module):
    """A 3x3 stem, three stages of `(depth - 2) / 6` blocks and a final BN and ReLU."""

    def __init__(self, depth: int = 110, width: float = 1.0, classes: int = 10) -> None:
        super().__init__()
        if (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2, got {depth}")
        channels = scaled(16, width)
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        blocks: list[PreActBlock] = []
        for stage in range(3):
            out = scaled(16 * 2**stage, width)
            for i in range((depth - 2) // 6):
                blocks.append(PreActBlock(channels, out, 2 if stage > 0 and i == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)
        he_initialize_(self, [b.conv2 for b in blocks])

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.blocks(self.conv1(x))))
        return self.fc(x.mean(dim=(2, 3)))
