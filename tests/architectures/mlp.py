"""Multilayer perceptron: four linear layers, with or without batch normalisation of the three hidden ones."""

from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled


class MLP(nn.Module):
    """Linear, BatchNorm1d, ReLU and dropout, three times, and a linear output."""

    def __init__(
        self, inputs: int = 20, width: float = 1.0, classes: int = 5, batch_norm: bool = True, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        channels = inputs
        for hidden in (64, 64, 32):
            out = scaled(hidden, width)
            self.layers.append(nn.Linear(channels, out))
            if batch_norm:
                self.layers.append(nn.BatchNorm1d(out))
            self.layers.extend([nn.ReLU(), nn.Dropout(dropout)])
            channels = out
        self.output = nn.Linear(channels, classes)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layers(x))
