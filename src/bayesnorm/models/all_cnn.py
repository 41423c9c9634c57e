"""All-CNN, the network of the paper's CIFAR-10 experiments."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from .._wire import InputStats
from ..norms import NormSpec
from ..scales import ScaleSpec
from ._normalized import normalized

KERNELS = (3, 3, 3, 3, 3, 3, 3, 1, 1)
STRIDES = (1, 1, 2, 1, 1, 2, 1, 1, 1)
CHANNELS = (96, 96, 96, 192, 192, 192, 192, 192)


class AllCNN(nn.Module):
    """Nine convolutions, leaky ReLU 0.01 after all but the last, global average pooling, log-softmax.

    Arguments:
        padding: ``"valid"`` (none: the paper's 2x2 map in layer 6) or ``"same"``.
        width: factor on the channels of the hidden layers.
        num_classes: outputs.
        in_channels: channels of the input ``(N, C, H, W)``.
        dropout: probability of dropping a value behind each of the two strided convolutions, where Springenberg et al.
            drop half; for MC dropout.
    """

    def __init__(
        self,
        padding: Literal["valid", "same"] = "valid",
        width: float = 1.0,
        num_classes: int = 10,
        in_channels: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if padding not in ("valid", "same"):
            raise ValueError(f"padding={padding!r}: choose 'valid' or 'same'")
        if not width > 0:
            raise ValueError(f"width={width}: must be positive")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}: must be at least 0 and below 1")
        layers: list[nn.Module] = []
        before = in_channels
        for kernel, stride, channels in zip(KERNELS, STRIDES, (*CHANNELS, None), strict=True):
            after = num_classes if channels is None else max(1, round(channels * width))
            pad = kernel // 2 if padding == "same" else 0
            layers += [nn.Conv2d(before, after, kernel, stride, pad), nn.LeakyReLU(0.01, inplace=True)]
            layers += [nn.Dropout(dropout)] if stride > 1 and dropout else []
            before = after
        self.features = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities ``(N, num_classes)``."""
        maps: Tensor = self.features(x)
        return maps.mean((2, 3)).log_softmax(1)


def all_cnn(
    norm: str | NormSpec | None = "analytic",
    scale: str | ScaleSpec = "bayes",
    padding: Literal["valid", "same"] = "valid",
    width: float = 1.0,
    num_classes: int = 10,
    in_channels: int = 3,
    dropout: float = 0.0,
    input_stats: InputStats = None,
    example: Tensor | None = None,
) -> nn.Module:
    """All-CNN with a norm after every convolution (``norm=None``: the plain network), s = 1 and b = 0.

    ``input_stats`` and ``example`` are those of :func:`bayesnorm.convert`.

    >>> sum(p.numel() for p in all_cnn().parameters())
    1372254
    """
    net = AllCNN(padding, width, num_classes, in_channels, dropout)
    return normalized(net, norm, scale, input_stats, example, (in_channels, 32, 32))
