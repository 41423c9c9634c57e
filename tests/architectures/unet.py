"""U-Net (Ronneberger et al., 2015, arXiv:1505.04597) with BN and padded convolutions: four levels down and up."""

import torch
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled

CHANNELS = (64, 128, 256, 512, 1024)


class DoubleConv(nn.Sequential):
    """Twice 3x3 convolution, BN and ReLU."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    """Transposed convolution with BN, concatenated with the skip connection."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, out, 2, stride=2)
        self.norm = nn.BatchNorm2d(out)
        self.conv = DoubleConv(2 * out, out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat([skip, self.norm(self.up(x))], dim=1))


class UNet(nn.Module):
    """U-Net that returns one logit per class and pixel."""

    def __init__(self, width: float = 1.0, classes: int = 4) -> None:
        super().__init__()
        channels = [scaled(c, width) for c in CHANNELS]
        self.inc = DoubleConv(3, channels[0])
        self.pool = nn.MaxPool2d(2)
        self.downs = nn.ModuleList(DoubleConv(channels[i], channels[i + 1]) for i in range(4))
        self.ups = nn.ModuleList(Up(channels[i + 1], channels[i]) for i in reversed(range(4)))
        self.outc = nn.Conv2d(channels[0], classes, 1)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.inc(x)]
        for down in self.downs:
            skips.append(down(self.pool(skips[-1])))
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.outc(x)
