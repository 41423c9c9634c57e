"""ResNet-18, for comparison with networks that everyone has trained."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._wire import InputStats
from ..norms import NormSpec
from ..scales import ScaleSpec
from ._normalized import normalized

CHANNELS = (64, 128, 256, 512)
BLOCKS = 2
SIDES = {"cifar": 32, "imagenet": 224}


class Block(nn.Module):
    """``relu(conv2(relu(conv1(x))) + shortcut(x))``, 3x3; the shortcut is a 1x1 convolution where the size changes.

    Arguments:
        before: channels of the input ``(N, before, H, W)``.
        after: channels of the output ``(N, after, H / stride, W / stride)``, rounded up.
        stride: of the first convolution and of the shortcut.
    """

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        # By the stride too, so that at tiny widths (64 and 128 both rounded to 1) the sum still fits.
        changes = stride > 1 or before != after
        self.shortcut: nn.Module = nn.Conv2d(before, after, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Activations behind the sum."""
        branch = self.conv2(F.relu(self.conv1(x), inplace=True))
        return F.relu(branch + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """Stem, eight basic blocks in four stages, global average pooling, a linear layer, log-softmax; no normalization.

    It trains as it is: He's initialization (which normalized layers do not see, being invariant to the length of their
    weights), with the last convolution of each branch divided by the square root of the number of blocks, which
    keeps the sum over the branches bounded.

    Arguments:
        width: factor on the channels 64, 128, 256, 512.
        num_classes: outputs.
        in_channels: channels of the input ``(N, C, H, W)``.
        stem: ``"cifar"`` (3x3, stride 1) or ``"imagenet"`` (7x7, stride 2, max-pooling 3x3 of stride 2).
    """

    def __init__(
        self,
        width: float = 1.0,
        num_classes: int = 10,
        in_channels: int = 3,
        stem: Literal["cifar", "imagenet"] = "cifar",
    ) -> None:
        super().__init__()
        if stem not in SIDES:
            raise ValueError(f"stem={stem!r}: choose 'cifar' or 'imagenet'")
        if not width > 0:
            raise ValueError(f"width={width}: must be positive")
        widths = [max(1, round(channels * width)) for channels in CHANNELS]
        small = stem == "cifar"
        self.conv1 = nn.Conv2d(in_channels, widths[0], 3 if small else 7, 1 if small else 2, 1 if small else 3)
        self.pool: nn.Module = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        blocks: list[Block] = []
        before = widths[0]
        for stage, after in enumerate(widths):
            for first in (True, *[False] * (BLOCKS - 1)):
                blocks.append(Block(before, after, 2 if first and stage else 1))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(before, num_classes)
        _initialize_(self, blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities ``(N, num_classes)``."""
        maps: Tensor = self.blocks(self.pool(F.relu(self.conv1(x), inplace=True)))
        out: Tensor = self.fc(maps.mean((2, 3)))
        return out.log_softmax(1)


@torch.no_grad()
def _initialize_(net: nn.Module, blocks: list[Block]) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
    for block in blocks:
        block.conv2.weight.div_(math.sqrt(len(blocks)))
        if isinstance(block.shortcut, nn.Conv2d):
            # A shortcut has no activation of its own: gain 1, not sqrt(2).
            block.shortcut.weight.div_(math.sqrt(2))


def resnet18(
    norm: str | NormSpec | None = "analytic",
    scale: str | ScaleSpec = "bayes",
    width: float = 1.0,
    num_classes: int = 10,
    in_channels: int = 3,
    stem: Literal["cifar", "imagenet"] = "cifar",
    input_stats: InputStats = None,
    example: Tensor | None = None,
) -> nn.Module:
    """ResNet-18 with a norm after each of its 20 convolutions, shortcuts included, s = 1 and b = 0.

    The linear layer has none. ``norm=None`` is the plain network. ``input_stats`` and ``example`` are those of
    :func:`bayesnorm.convert`.

    >>> sum(p.numel() for p in resnet18(norm="batch", scale="point").parameters())
    11173962
    """
    net = ResNet18(width, num_classes, in_channels, stem)
    return normalized(net, norm, scale, input_stats, example, (in_channels, SIDES[stem], SIDES[stem]), "fc")
