"""Three-dimensional convolutional network: three convolutions with BatchNorm3d on (N, C, D, H, W)."""

from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled


class Conv3dNet(nn.Module):
    """Two convolutions and a transposed one, each with BatchNorm3d and ReLU, and a linear head."""

    def __init__(self, width: float = 1.0, classes: int = 5) -> None:
        super().__init__()
        c8, c16 = scaled(8, width), scaled(16, width)
        self.features = nn.Sequential(
            nn.Conv3d(1, c8, 3, padding=1, bias=False),
            nn.BatchNorm3d(c8),
            nn.ReLU(inplace=True),
            nn.MaxPool3d(2),
            nn.Conv3d(c8, c16, 3, padding=1),
            nn.BatchNorm3d(c16),
            nn.ReLU(inplace=True),
            nn.ConvTranspose3d(c16, c8, 2, stride=2),
            nn.BatchNorm3d(c8),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(c8, classes)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
