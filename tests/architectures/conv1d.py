"""One-dimensional convolutional network: four convolutions with BatchNorm1d on (N, C, L)."""

import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled


class Conv1dNet(nn.Module):
    """Strided, dilated and grouped convolutions and a transposed one, pooled over time."""

    def __init__(self, inputs: int = 4, width: float = 1.0, classes: int = 5) -> None:
        super().__init__()
        c16, c32 = scaled(16, width), scaled(32, width)
        self.conv1 = nn.Conv1d(inputs, c16, 5, stride=2, padding=2, bias=False)
        self.bn1 = nn.BatchNorm1d(c16)
        self.conv2 = nn.Conv1d(c16, c32, 3, dilation=2, padding=2, padding_mode="circular")
        self.bn2 = nn.BatchNorm1d(c32)
        self.conv3 = nn.Conv1d(c32, c32, 3, padding="same", groups=4, bias=False)
        self.bn3 = nn.BatchNorm1d(c32)
        self.up = nn.ConvTranspose1d(c32, c16, 4, stride=2, padding=1)
        self.bn4 = nn.BatchNorm1d(c16)
        self.fc = nn.Linear(c16, classes)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool1d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.bn3(self.conv3(x)))
        x = F.relu(self.bn4(self.up(x)))
        return self.fc(x.mean(-1))
