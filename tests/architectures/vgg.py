"""VGG (Simonyan and Zisserman, 2014, arXiv:1409.1556), configuration D: 13 convolutions and 3 linear layers."""

from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG16(nn.Module):
    """VGG-16 for 32x32 inputs, with or without batch normalisation behind every convolution."""

    def __init__(self, width: float = 1.0, classes: int = 10, batch_norm: bool = True, dropout: float = 0.5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage_channels, convolutions in STAGES:
            for _ in range(convolutions):
                out = scaled(stage_channels, width)
                layers.append(nn.Conv2d(channels, out, 3, padding=1))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(out))
                layers.append(nn.ReLU(inplace=True))
                channels = out
            layers.append(nn.MaxPool2d(2))
        hidden = scaled(4096, width)
        self.features = nn.Sequential(*layers)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(channels, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.flatten(self.features(x)))
