"""Small networks, one per layer type and kind of wiring, and every random scale, for the tests of drawing."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import bayesnorm
from bayesnorm import Bayes, Noise
from bayesnorm.layers import norm_layers

NORMS = ("batch", "weight", "analytic")
RANDOM = {
    "noise": Noise(sigma_u=0.3, sigma_v=0.2),
    "bayes": Bayes(sigma_init=0.3),
    "bayes_per_layer": Bayes(sigma_init=0.3, per_layer_variance=True),
    "bayes_stochastic_bias": Bayes(sigma_init=0.3, stochastic_bias=True),
}


class Residual(nn.Module):
    """A skip passes by the first normalized layer, another by a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.last = nn.Conv2d(6, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.first(x) + x)
        return self.head((self.last(h).relu() + h).mean((2, 3)))


class ReadsBatchSize(nn.Module):
    """Takes the batch size from its input and uses it at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        return self.head(self.second(self.first(x).relu()).relu().view(batch, -1))


def _conv(layer: type[nn.Module], *pool: nn.Module) -> nn.Module:
    return nn.Sequential(layer(3, 6, 3), nn.LeakyReLU(0.01), layer(6, 6, 3), nn.ReLU(), *pool, nn.Linear(6, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)), (5,)),
    "conv1d": (lambda: _conv(nn.Conv1d, nn.AdaptiveAvgPool1d(1), nn.Flatten()), (3, 9)),
    "conv2d": (lambda: _conv(nn.Conv2d, nn.AdaptiveAvgPool2d(1), nn.Flatten()), (3, 8, 8)),
    "conv3d": (lambda: _conv(nn.Conv3d, nn.AdaptiveAvgPool3d(1), nn.Flatten()), (3, 5, 5, 5)),
    "segmentation": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, groups=3), nn.ReLU(), nn.ConvTranspose2d(6, 4, 3, stride=2), nn.Conv2d(4, 4, 1)
        ),
        (3, 7, 7),
    ),
    "residual": (Residual, (3, 6, 6)),
    "reads_batch_size": (ReadsBatchSize, (3, 8, 8)),
}

MEMBERS = [
    *[("conv2d", norm, scale) for norm in NORMS for scale in RANDOM],
    *[(network, "analytic", "bayes") for network in NETWORKS if network not in ("conv2d", "reads_batch_size")],
    *[(network, "batch", "noise") for network in NETWORKS if network not in ("conv2d", "reads_batch_size")],
]
"""Every norm x random scale on one network, every layer type and wiring with two of them."""


def converted(network: str, norm: str, scale: str, seed: int = 0) -> nn.Module:
    """The network, every layer normalized, in evaluation mode; scales, biases, statistics away from defaults."""
    build, size = NETWORKS[network]
    torch.manual_seed(seed)
    spec = RANDOM.get(scale, scale)
    net = bayesnorm.convert(build(), norm=norm, scale=spec, preserve=False, input_size=size).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for layer in norm_layers(net).values():
            layer.scale.s.copy_(torch.rand(layer.scale.s.shape, generator=generator) + 0.5)
            layer.scale.b.copy_(torch.randn(layer.scale.b.shape, generator=generator) * 0.5)
            for name, buffer in layer.norm.named_buffers():
                if name in ("running_mean", "running_var"):
                    buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return net


def inputs(network: str, batch: int, seed: int = 0) -> Tensor:
    """A batch for the network."""
    return torch.randn(batch, *NETWORKS[network][1], generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def outputs_of_rank(rank: int, size: int) -> dict[str, list[Tensor]]:
    """What one of ``size`` processes computes: two training steps of several networks, its part of the batch."""
    part = inputs("conv2d", 6).chunk(size)[rank]
    results: dict[str, list[Tensor]] = {}
    for scale in RANDOM:
        net = converted("conv2d", "analytic", scale).train()
        results[scale] = [net(part) for _ in range(2)]
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.SyncBatchNorm(4)
    net = bayesnorm.convert(nn.Sequential(*layers), norm="batch", scale="bayes").train()
    results["sync"] = [net(part) for _ in range(2)]
    norms = [layer.norm for layer in norm_layers(net).values()]
    results["running"] = [
        torch.stack([statistic for norm in norms for statistic in (norm.running_mean, norm.running_var)])
    ]
    return results
