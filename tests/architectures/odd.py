"""Small networks, two to five layers each, for the corner cases of module graphs. All take (N, 3, 16, 16)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .initialize import he_initialize_
from .width import scaled

CLASSES = 5


class _Odd(nn.Module):
    """Stem channels from the width multiplier and a pooled linear head."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.channels = scaled(16, width)
        self.fc = nn.Linear(self.channels, CLASSES)

    def pooled(self, x: Tensor) -> Tensor:
        return self.fc(x.mean((2, 3)))


class ConvBNReLU(nn.Sequential):
    """3x3 convolution, BN and ReLU."""

    def __init__(self, channels: int, out: int, bias: bool = False) -> None:
        super().__init__(nn.Conv2d(channels, out, 3, padding=1, bias=bias), nn.BatchNorm2d(out), nn.ReLU())


class SharedBlock(_Odd):
    """One block called twice in one forward pass."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.stem = ConvBNReLU(3, self.channels)
        self.block = ConvBNReLU(self.channels, self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(self.block(self.block(self.stem(x))))


class AliasedModule(_Odd):
    """One convolution and one BN, each registered under two names, of which forward uses one each."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv = nn.Conv2d(3, self.channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(self.channels)
        self.conv_alias = self.conv
        self.norm_alias = self.norm
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(F.relu(self.norm_alias(self.conv(x))))


class ConvToNormAndSkip(_Odd):
    """A convolution whose output feeds both a BN and a skip connection."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv1 = nn.Conv2d(3, self.channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(self.channels)
        self.conv2 = nn.Conv2d(self.channels, self.channels, 3, padding=1, bias=False)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.conv1(x)
        return self.pooled(self.conv2(F.relu(self.bn1(skip))) + skip)


class ConvToTwoNorms(_Odd):
    """A convolution whose output feeds two different BNs."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv = nn.Conv2d(3, self.channels, 3, padding=1, bias=False)
        self.norm_a = nn.BatchNorm2d(self.channels)
        self.norm_b = nn.BatchNorm2d(self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.pooled(F.relu(self.norm_a(x)) + torch.tanh(self.norm_b(x)))


class NormAfterTwoConvs(_Odd):
    """One BN shared by two convolutions."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv_a = nn.Conv2d(3, self.channels, 3, padding=1, bias=False)
        self.conv_b = nn.Conv2d(3, self.channels, 1)
        self.norm = nn.BatchNorm2d(self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(F.relu(self.norm(self.conv_a(x))) + F.relu(self.norm(self.conv_b(x))))


class NormOnInput(_Odd):
    """A BN on the input, with no linear map before it, and a pooling between a convolution and its BN."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.norm_in = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, self.channels, 3, padding=1, bias=False)
        self.pool = nn.AvgPool2d(2)
        self.norm = nn.BatchNorm2d(self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(F.relu(self.norm(self.pool(self.conv(self.norm_in(x))))))


class NestedContainers(_Odd):
    """Sequential in ModuleList in ModuleDict."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        c = self.channels
        self.parts = nn.ModuleDict(
            {
                "stem": nn.ModuleList([ConvBNReLU(3, c)]),
                "body": nn.ModuleList([nn.Sequential(ConvBNReLU(c, c), nn.Sequential(ConvBNReLU(c, c)))]),
            }
        )
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        for name in ("stem", "body"):
            part = self.parts[name]
            assert isinstance(part, nn.ModuleList)
            for module in part:
                x = module(x)
        return self.pooled(x)


class FunctionalForms(_Odd):
    """Activations, poolings and reshapes as functions and tensor methods, in place and not."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv1 = nn.Conv2d(3, self.channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(self.channels)
        self.conv2 = nn.Conv2d(self.channels, self.channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = self.bn2(self.conv2(x)).relu_()
        x = F.avg_pool2d(x, x.shape[-2:])
        return self.fc(x.view(x.size(0), -1))


class FunctionalLayers(_Odd):
    """Convolution, BN and linear map applied by functions to the parameters of modules that are never called."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv = nn.Conv2d(3, self.channels, 3)
        self.norm = nn.BatchNorm2d(self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.conv.weight, self.conv.bias, padding=1)
        norm = self.norm
        x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, self.training)
        return F.linear(F.relu(x).mean((2, 3)), self.fc.weight, self.fc.bias)


class BiasBeforeNorm(_Odd):
    """Convolutions with a bias, drawn at random, before their BNs."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.blocks = nn.Sequential(
            ConvBNReLU(3, self.channels, bias=True), ConvBNReLU(self.channels, self.channels, bias=True)
        )
        he_initialize_(self)
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("0.bias"):
                nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(self.blocks(x))


class NormWithoutAffine(_Odd):
    """BNs without scale and shift, one of them with a cumulative average of the statistics."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv1 = nn.Conv2d(3, self.channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(self.channels, affine=False)
        self.conv2 = nn.Conv2d(self.channels, self.channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(self.channels, affine=False, momentum=None)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.pooled(F.relu(self.bn2(self.conv2(x))))


class GroupedTransposed(_Odd):
    """Transposed convolutions with groups, output padding and unequal channel counts, before BNs."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        c = self.channels
        self.conv = nn.Conv2d(3, 2 * c, 3, stride=2, padding=1)
        self.up1 = nn.ConvTranspose2d(2 * c, c, 3, stride=2, padding=1, output_padding=1, groups=4, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.up2 = nn.ConvTranspose2d(c, c, 3, padding=1, groups=c)
        self.bn2 = nn.BatchNorm2d(c)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.up1(F.relu(self.conv(x)))))
        return self.pooled(F.relu(self.bn2(self.up2(x))))


class Dilated(_Odd):
    """Dilated convolutions before BNs, one with reflected borders and unequal kernel sides."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv1 = nn.Conv2d(3, self.channels, 3, padding=2, dilation=2, bias=False)
        self.bn1 = nn.BatchNorm2d(self.channels)
        self.conv2 = nn.Conv2d(
            self.channels, self.channels, (3, 5), padding=(2, 2), dilation=(2, 1), padding_mode="reflect"
        )
        self.bn2 = nn.BatchNorm2d(self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.pooled(F.relu(self.bn2(self.conv2(x))))


def root_sequential(width: float = 1.0) -> nn.Sequential:
    """A network that is an nn.Sequential at the root."""
    c = scaled(16, width)
    net = nn.Sequential(
        nn.Conv2d(3, c, 3, padding=1, bias=False),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        nn.Conv2d(c, c, 3, stride=2, padding=1),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(c, CLASSES),
    )
    he_initialize_(net)
    return net


class ExtraMethods(nn.Module):
    """A forward pass that calls methods of the network and reads a property and a buffer."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        c = scaled(16, width)
        self.block = ConvBNReLU(3, c)
        self.fc = nn.Linear(c, CLASSES)
        self.shift: Tensor
        self.register_buffer("shift", torch.tensor(0.5))
        he_initialize_(self)

    @property
    def temperature(self) -> float:
        return 2.0

    def features(self, x: Tensor) -> Tensor:
        return self.block(x - self.shift)

    def head(self, x: Tensor) -> Tensor:
        return self.fc(x.mean((2, 3))) / self.temperature

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class GroupNormNet(_Odd):
    """Group and instance normalisation in the place of BN."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv1 = nn.Conv2d(3, self.channels, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, self.channels)
        self.conv2 = nn.Conv2d(self.channels, self.channels, 3, padding=1)
        self.norm2 = nn.InstanceNorm2d(self.channels, affine=True)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        return self.pooled(F.relu(self.norm2(self.conv2(x))))


class ChannelSoftmax(_Odd):
    """Softmax over the channels as activation, which couples the channels."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.conv1 = nn.Conv2d(3, self.channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(self.channels)
        self.softmax = nn.Softmax(dim=1)
        self.conv2 = nn.Conv2d(self.channels, self.channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.softmax(self.bn1(self.conv1(x)))
        return self.pooled(torch.softmax(self.bn2(self.conv2(x)), 1))


class FunctionalDropout(_Odd):
    """Functional dropout of units and of whole channels, active in training only."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.block1 = ConvBNReLU(3, self.channels)
        self.block2 = ConvBNReLU(self.channels, self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout2d(self.block1(x), 0.2, self.training)
        x = F.dropout(self.block2(x), p=0.3, training=self.training)
        return self.pooled(x)


class MixedActivations(_Odd):
    """Leaky ReLU, tanh, softplus, ELU and PReLU behind BNs."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        c = self.channels
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else c, c, 3, padding=1, bias=i % 2 == 0) for i in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for _ in range(5))
        self.activations = nn.ModuleList([nn.LeakyReLU(0.1), nn.Tanh(), nn.Softplus(), nn.ELU(), nn.PReLU(c)])
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm, activation in zip(self.convs, self.norms, self.activations, strict=True):
            x = activation(norm(conv(x)))
        return self.pooled(x)


class ShapeControlFlow(_Odd):
    """Python control flow on the shape of the input: large inputs are pooled until they are small."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        self.stem = ConvBNReLU(3, self.channels)
        self.block = ConvBNReLU(self.channels, self.channels)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        while x.shape[-1] > 8:
            x = F.max_pool2d(x, 2)
        if x.shape[0] > 1:
            x = self.block(x)
        return self.pooled(x)


class PreActTiny(_Odd):
    """Pre-activation block: BN, ReLU and convolution twice, with a skip connection and a final BN."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__(width)
        c = self.channels
        self.stem = nn.Conv2d(3, c, 3, padding=1, bias=False)
        self.branch = nn.Sequential(
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
        )
        self.norm = nn.BatchNorm2d(c)
        he_initialize_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.branch(x)
        return self.pooled(F.relu(self.norm(x)))
