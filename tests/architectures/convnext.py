"""ConvNeXt (Liu et al., 2022, arXiv:2201.03545): ConvNeXt-Tiny, depths (3, 3, 9, 3), without batch normalisation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .stochastic_depth import StochasticDepth
from .width import scaled

STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Block(nn.Module):
    """Depthwise 7x7 convolution, then layer norm and an MLP in channels-last order, scaled per channel."""

    def __init__(self, channels: int, layer_scale: float, drop: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), layer_scale))
        self.drop_path = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        out = self.dwconv(x).permute(0, 2, 3, 1)
        out = self.pwconv2(self.act(self.pwconv1(self.norm(out))))
        out = (self.gamma * out).permute(0, 3, 1, 2)
        return x + self.drop_path(out)


class ConvNeXtTiny(nn.Module):
    """Patch stem, four stages of blocks with downsampling between them, and a normalised linear head."""

    def __init__(
        self, width: float = 1.0, classes: int = 10, layer_scale: float = 1e-6, stochastic_depth: float = 0.1
    ) -> None:
        super().__init__()
        total = sum(depth for _, depth in STAGES)
        rates = iter(torch.linspace(0.0, stochastic_depth, total).tolist())
        self.downsample_layers = nn.ModuleList()
        self.stages = nn.ModuleList()
        channels = 3
        for stage_channels, depth in STAGES:
            out = scaled(stage_channels, width)
            if channels == 3:
                down = nn.Sequential(nn.Conv2d(3, out, 4, stride=4), LayerNorm2d(out, eps=1e-6))
            else:
                down = nn.Sequential(LayerNorm2d(channels, eps=1e-6), nn.Conv2d(channels, out, 2, stride=2))
            self.downsample_layers.append(down)
            self.stages.append(nn.Sequential(*(Block(out, layer_scale, next(rates)) for _ in range(depth))))
            channels = out
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.head = nn.Linear(channels, classes)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        for downsample, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(downsample(x))
        return self.head(self.norm(x.mean([-2, -1])))
