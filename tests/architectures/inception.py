"""Inception-v3 (Szegedy et al., 2015, arXiv:1512.00567): 11 inception modules and an auxiliary head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled


class ConvBN(nn.Module):
    """Convolution without bias, BN and ReLU."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class InceptionA(nn.Module):
    """1x1, 5x5, double 3x3 and pooling branches."""

    def __init__(self, channels: int, pool: int, width: float) -> None:
        super().__init__()
        c48, c64, c96, pool = scaled(48, width), scaled(64, width), scaled(96, width), scaled(pool, width)
        self.branch1x1 = ConvBN(channels, c64, 1)
        self.branch5x5 = nn.Sequential(ConvBN(channels, c48, 1), ConvBN(c48, c64, 5, padding=2))
        self.branch3x3 = nn.Sequential(
            ConvBN(channels, c64, 1), ConvBN(c64, c96, 3, padding=1), ConvBN(c96, c96, 3, padding=1)
        )
        self.branch_pool = ConvBN(channels, pool, 1)
        self.out = 2 * c64 + c96 + pool

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return torch.cat([self.branch1x1(x), self.branch5x5(x), self.branch3x3(x), pooled], 1)


class InceptionB(nn.Module):
    """Halves the resolution after the A modules."""

    def __init__(self, channels: int, width: float) -> None:
        super().__init__()
        c64, c96, c384 = scaled(64, width), scaled(96, width), scaled(384, width)
        self.branch3x3 = ConvBN(channels, c384, 3, stride=2)
        self.branch3x3dbl = nn.Sequential(
            ConvBN(channels, c64, 1), ConvBN(c64, c96, 3, padding=1), ConvBN(c96, c96, 3, stride=2)
        )
        self.out = c384 + c96 + channels

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch3x3(x), self.branch3x3dbl(x), F.max_pool2d(x, kernel_size=3, stride=2)], 1)


class InceptionC(nn.Module):
    """1x1, factorised 7x7, double factorised 7x7 and pooling branches."""

    def __init__(self, channels: int, inner: int, width: float) -> None:
        super().__init__()
        c, c192 = scaled(inner, width), scaled(192, width)
        self.branch1x1 = ConvBN(channels, c192, 1)
        self.branch7x7 = nn.Sequential(
            ConvBN(channels, c, 1), ConvBN(c, c, (1, 7), padding=(0, 3)), ConvBN(c, c192, (7, 1), padding=(3, 0))
        )
        self.branch7x7dbl = nn.Sequential(
            ConvBN(channels, c, 1),
            ConvBN(c, c, (7, 1), padding=(3, 0)),
            ConvBN(c, c, (1, 7), padding=(0, 3)),
            ConvBN(c, c, (7, 1), padding=(3, 0)),
            ConvBN(c, c192, (1, 7), padding=(0, 3)),
        )
        self.branch_pool = ConvBN(channels, c192, 1)
        self.out = 4 * c192

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return torch.cat([self.branch1x1(x), self.branch7x7(x), self.branch7x7dbl(x), pooled], 1)


class InceptionD(nn.Module):
    """Halves the resolution after the C modules."""

    def __init__(self, channels: int, width: float) -> None:
        super().__init__()
        c192, c320 = scaled(192, width), scaled(320, width)
        self.branch3x3 = nn.Sequential(ConvBN(channels, c192, 1), ConvBN(c192, c320, 3, stride=2))
        self.branch7x7 = nn.Sequential(
            ConvBN(channels, c192, 1),
            ConvBN(c192, c192, (1, 7), padding=(0, 3)),
            ConvBN(c192, c192, (7, 1), padding=(3, 0)),
            ConvBN(c192, c192, 3, stride=2),
        )
        self.out = c320 + c192 + channels

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch3x3(x), self.branch7x7(x), F.max_pool2d(x, kernel_size=3, stride=2)], 1)


class InceptionE(nn.Module):
    """Branches whose 3x3 convolutions are split into parallel 1x3 and 3x1 convolutions."""

    def __init__(self, channels: int, width: float) -> None:
        super().__init__()
        c192, c320, c384, c448 = (scaled(c, width) for c in (192, 320, 384, 448))
        self.branch1x1 = ConvBN(channels, c320, 1)
        self.branch3x3_1 = ConvBN(channels, c384, 1)
        self.branch3x3_2a = ConvBN(c384, c384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = ConvBN(c384, c384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = nn.Sequential(ConvBN(channels, c448, 1), ConvBN(c448, c384, 3, padding=1))
        self.branch3x3dbl_2a = ConvBN(c384, c384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_2b = ConvBN(c384, c384, (3, 1), padding=(1, 0))
        self.branch_pool = ConvBN(channels, c192, 1)
        self.out = c320 + 4 * c384 + c192

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch3x3_1(x)
        double = self.branch3x3dbl_1(x)
        return torch.cat(
            [
                self.branch1x1(x),
                torch.cat([self.branch3x3_2a(single), self.branch3x3_2b(single)], 1),
                torch.cat([self.branch3x3dbl_2a(double), self.branch3x3dbl_2b(double)], 1),
                self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)),
            ],
            1,
        )


class AuxiliaryHead(nn.Module):
    """Classifier on the C modules; adaptive pooling to 5x5 admits inputs smaller than 299x299."""

    def __init__(self, channels: int, classes: int, width: float) -> None:
        super().__init__()
        c128, c768 = scaled(128, width), scaled(768, width)
        self.conv0 = ConvBN(channels, c128, 1)
        self.conv1 = ConvBN(c128, c768, 5)
        self.fc = nn.Linear(c768, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.conv0(F.adaptive_avg_pool2d(x, 5)))
        return self.fc(torch.flatten(x, 1))


class InceptionV3(nn.Module):
    """Inception-v3 for inputs of at least 75x75; returns `(logits, auxiliary logits)` in training."""

    def __init__(self, width: float = 1.0, classes: int = 10, dropout: float = 0.5) -> None:
        super().__init__()
        c32, c64, c80, c192 = (scaled(c, width) for c in (32, 64, 80, 192))
        self.stem = nn.Sequential(
            ConvBN(3, c32, 3, stride=2),
            ConvBN(c32, c32, 3),
            ConvBN(c32, c64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            ConvBN(c64, c80, 1),
            ConvBN(c80, c192, 3),
            nn.MaxPool2d(3, stride=2),
        )
        self.mixed_5b = InceptionA(c192, 32, width)
        self.mixed_5c = InceptionA(self.mixed_5b.out, 64, width)
        self.mixed_5d = InceptionA(self.mixed_5c.out, 64, width)
        self.mixed_6a = InceptionB(self.mixed_5d.out, width)
        self.mixed_6b = InceptionC(self.mixed_6a.out, 128, width)
        self.mixed_6c = InceptionC(self.mixed_6b.out, 160, width)
        self.mixed_6d = InceptionC(self.mixed_6c.out, 160, width)
        self.mixed_6e = InceptionC(self.mixed_6d.out, 192, width)
        self.aux = AuxiliaryHead(self.mixed_6e.out, classes, width)
        self.mixed_7a = InceptionD(self.mixed_6e.out, width)
        self.mixed_7b = InceptionE(self.mixed_7a.out, width)
        self.mixed_7c = InceptionE(self.mixed_7b.out, width)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(self.mixed_7c.out, classes)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.mixed_5d(self.mixed_5c(self.mixed_5b(self.stem(x))))
        x = self.mixed_6e(self.mixed_6d(self.mixed_6c(self.mixed_6b(self.mixed_6a(x)))))
        aux = self.aux(x) if self.training else None
        x = self.mixed_7c(self.mixed_7b(self.mixed_7a(x)))
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        out = self.fc(self.dropout(x))
        return out if aux is None else (out, aux)
