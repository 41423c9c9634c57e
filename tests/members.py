"""Every member of the family, norm x scale x layer type, as one small network, and what several test files need."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from architectures import randomize_
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor, nn

import bayesnorm
from bayesnorm import noise
from bayesnorm._scope import TRAINING
from bayesnorm.layers import NormLayer, norm_layers

NORMS = ("batch", "weight", "analytic")
SCALES = ("point", "noise", "bayes")
MEMBERS = [(norm, scale) for norm in NORMS for scale in SCALES]
Z = 5.0


@dataclass(frozen=True)
class Kind:
    """A network of two layers of one type, and the size of one input."""

    make: Callable[[], nn.Sequential]
    size: tuple[int, ...]


def _stack(first: nn.Module, second: nn.Module, dim: int) -> nn.Sequential:
    bn = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dim - 1]
    return nn.Sequential(first, bn(_outputs(first)), nn.LeakyReLU(0.1), second, bn(_outputs(second)))


def _outputs(layer: nn.Module) -> int:
    return cast(int, layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def _channel() -> nn.Sequential:
    """The second BatchNorm has no convolution of its own: it becomes a ChannelNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(0.1), nn.AvgPool2d(2), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1)
    )


KINDS: dict[str, Kind] = {
    "conv1d": Kind(lambda: _stack(nn.Conv1d(3, 4, 3), nn.Conv1d(4, 5, 3, stride=2), 1), (3, 9)),
    "conv2d": Kind(lambda: _stack(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, bias=False), 2), (3, 6, 6)),
    "conv3d": Kind(lambda: _stack(nn.Conv3d(2, 3, 2), nn.Conv3d(3, 4, 2, stride=(1, 2, 1)), 3), (2, 4, 4, 4)),
    "transposed1d": Kind(lambda: _stack(nn.ConvTranspose1d(3, 4, 3, stride=2), nn.ConvTranspose1d(4, 5, 2), 1), (3, 5)),
    "transposed2d_grouped": Kind(
        lambda: _stack(
            nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2), 2
        ),
        (4, 3, 3),
    ),
    "transposed3d": Kind(
        lambda: _stack(nn.ConvTranspose3d(2, 3, 2, stride=2, bias=False), nn.ConvTranspose3d(3, 2, 2), 3), (2, 2, 2, 2)
    ),
    "grouped": Kind(lambda: _stack(nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(6, 4, 1, groups=2), 2), (4, 5, 5)),
    "depthwise": Kind(lambda: _stack(nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 6, 3, groups=6), 2), (3, 6, 6)),
    "dilated": Kind(lambda: _stack(nn.Conv2d(3, 4, 2, dilation=2), nn.Conv2d(4, 3, 2, dilation=(1, 2)), 2), (3, 6, 6)),
    "linear": Kind(lambda: _stack(nn.Linear(6, 5), nn.Linear(5, 4), 1), (6,)),
    "linear_sequence": Kind(lambda: nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(0.1), nn.Linear(5, 4)), (3, 6)),
    "channel": Kind(_channel, (3, 6, 6)),
}
FULL = [(norm, scale, kind) for norm, scale in MEMBERS for kind in KINDS]
INPUT_STATS = (0.3, 1.7)


def build(
    norm: Any,
    scale: Any,
    kind: str = "conv2d",
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    preserve: bool = True,
) -> nn.Module:
    """The converted network of a kind, in training mode, with random statistics, scales, biases and spreads."""
    return copy.deepcopy(_built(norm, scale, kind, dtype, seed, preserve))


@functools.cache
def _built(norm: Any, scale: Any, kind: str, dtype: torch.dtype, seed: int, preserve: bool) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        plain = randomize_(KINDS[kind].make(), seed, corner=False).to(dtype)
        preserve = preserve and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in plain.modules())
        options = {"input_stats": INPUT_STATS, "preserve": preserve, "input_size": KINDS[kind].size}
        net = bayesnorm.convert(plain, norm=norm, scale=scale, **options)
        if not preserve:
            perturb_(net, seed)
    return net.train()


@torch.no_grad()
def perturb_(net: nn.Module, seed: int = 0) -> nn.Module:
    """Random s in [0.5, 1.5] and b, where the conversion left 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    for layer in norm_layers(net).values():
        layer.scale.s.copy_(0.5 + torch.rand(layer.scale.s.shape, generator=generator))
        layer.scale.b.copy_(0.5 * torch.randn(layer.scale.b.shape, generator=generator))
    return net


def inputs(kind: str = "conv2d", batch: int = 4, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    """A batch for a kind."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *KINDS[kind].size, generator=generator, dtype=torch.float64).to(dtype)


def layers(net: nn.Module) -> list[NormLayer]:
    """Normalized layers in order."""
    return list(norm_layers(net).values())


def distance(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return float((actual - expected).detach().abs().max() / expected.detach().abs().max())


def train_and_eval(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of copies of a network in both modes; the network itself is not touched."""
    with torch.no_grad():
        return copy.deepcopy(net).train()(x), copy.deepcopy(net).eval()(x)


def training_draws(net: nn.Module, layer: NormLayer, batch: int) -> Tensor:
    """The standard normal numbers that a layer draws in the next training call, in float64."""
    key = noise.derive(cast(Tensor, net.noise_key), TRAINING)
    rows = noise.rows(key, cast(Tensor, net.noise_step), torch.arange(batch))
    return noise.normal(rows, layer.columns).double()


def clamped_moments(bound: float = 3.0) -> tuple[float, float]:
    """Second and fourth moment of the standard normal clamped to the bound."""
    tail = 2 * float(stats.norm.sf(bound))
    inside = stats.norm.expect
    second = float(inside(lambda x: x**2, lb=-bound, ub=bound)) + tail * bound**2
    fourth = float(inside(lambda x: x**4, lb=-bound, ub=bound)) + tail * bound**4
    return second, fourth


def mean_agrees(draws: Tensor, mean: Tensor, var: Tensor) -> bool:
    """Whether the mean over axis 0 is within 5 sigma of theory, everywhere."""
    return bool(((draws.mean(0) - mean).abs() <= Z * (var / len(draws)).sqrt()).all())


def variance_agrees(draws: Tensor, var: Tensor, kurtosis: Tensor | float) -> bool:
    """Whether the variance over axis 0 is within 5 sigma of theory, everywhere."""
    kurtosis = torch.as_tensor(kurtosis, dtype=var.dtype)
    tolerance = Z * var * ((kurtosis - 1) / len(draws)).sqrt()
    return bool(((draws.var(0) - var).abs() <= tolerance).all())


def loss_of(y: Tensor) -> Tensor:
    """A loss that tells all outputs apart."""
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return (y * weight + 0.1 * y**2).sum()


def gradients(net: nn.Module) -> dict[str, Tensor]:
    """Copies of all gradients by name; those that are missing are zero."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for name, p in net.named_parameters()
    }


def train_steps(net: nn.Module, opt: torch.optim.Optimizer, first: int, count: int, kind: str) -> list[Tensor]:
    """Some steps of training; losses."""
    elbo = bayesnorm.ELBO(net, n_data=100, nll=lambda output, target: (output - target).square().mean())
    losses = []
    for step in range(first, first + count):
        y = net(inputs(kind, seed=step))
        total = elbo(y, torch.ones_like(y)).total
        opt.zero_grad()
        total.backward()
        opt.step()
        bayesnorm.project_(net, momentum=opt)
        losses.append(total.detach())
    return losses


def optimizer(net: nn.Module) -> torch.optim.SGD:
    """SGD as the README sets it up."""
    return torch.optim.SGD(bayesnorm.param_groups(net, lr=0.01), momentum=0.9, nesterov=True)


def resume(folder: Path, kind: str) -> None:
    """In a new process: build every member, load it, train on, save."""
    for norm, scale in MEMBERS:
        net = build(norm, scale, kind, seed=7)
        opt = optimizer(net)
        saved = torch.load(folder / f"{norm}-{scale}.pt")
        net.load_state_dict(saved["net"])
        opt.load_state_dict(saved["opt"])
        losses = train_steps(net, opt, 3, 5, kind)
        torch.save({"net": net.state_dict(), "losses": losses}, folder / f"{norm}-{scale}-resumed.pt")


def quantiles(count: int, bound: float = 3.0) -> Tensor:
    """Midpoint quantiles of the clamped standard normal: a quadrature for expectations."""
    p = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return (math.sqrt(2) * torch.erfinv(2 * p - 1)).clamp(-bound, bound)
