"""What the tests of conversion, tracing and folding share: members of the family, networks to convert, comparison."""

import itertools
from functools import cache

import torch
from architectures import CASES, randomize_
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import NormLayer

NORMS = ("batch", "weight", "analytic")
SCALES = ("point", "noise", "bayes")
MEMBERS = tuple(itertools.product(NORMS, SCALES))
DIAGONAL = (("batch", "noise"), ("weight", "point"), ("analytic", "bayes"))  # each norm and each scale once
UNCALLED = "functional_layers"  # its modules only hold parameters: there is nothing to convert
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def relative(value: Tensor, reference: Tensor) -> float:
    """Largest deviation over the largest reference value."""
    return ((value - reference).abs().max() / reference.abs().max()).item()


def normal(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def build(name: str, dtype: torch.dtype = torch.float32, randomized: bool = True) -> nn.Module:
    """A case with random BN statistics, zero, tiny and negative scales among them, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = CASES[name].build()
    return (randomize_(net) if randomized else net).to(dtype).eval()


@cache
def reference(
    name: str, dtype: torch.dtype = torch.float32, randomized: bool = True
) -> tuple[nn.Module, Tensor, Tensor]:
    """Network, input and output, made once; whoever uses the network leaves it as it is."""
    net, x = build(name, dtype, randomized), normal(2, *CASES[name].input_size, dtype=dtype)
    with torch.no_grad():
        return net, x, net(x)


def plain(seed: int = 0, corner: bool = True) -> nn.Sequential:
    """Two convolutions with bias and BN, a leaky ReLU and a linear head, on (N, 3, 8, 8)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )
    randomize_(net, seed, corner)
    return net.eval()


def with_operation(operation: nn.Module) -> nn.Sequential:
    """An operation between two convolutions with BN, on (N, 3, 8, 8)."""
    net = plain()[:5]
    net[2] = operation
    return net


def convert(net: nn.Module, norm: object, scale: object, x: Tensor | None = None, **options: object) -> nn.Module:
    """Converted copy; a batch norm added where none was gets the batch to measure."""
    has_bn = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
    example = x if norm == "batch" and not has_bn else None
    return bayesnorm.convert(net, norm=norm, scale=scale, **({"example": example} | options))


def layers(net: nn.Module) -> dict[str, NormLayer]:
    return {name: module for name, module in net.named_modules() if isinstance(module, NormLayer)}


def input_moments(layer: NormLayer) -> tuple[Tensor, Tensor]:
    """What the moment pass says about the input of an analytically normalized layer."""
    return layer.opening.runtime.statistics(layer.opening)[layer.index]


@torch.no_grad()
def perturb_(net: nn.Module, size: float = 0.1, seed: int = 1) -> nn.Module:
    """Move every parameter away from where the conversion put it."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        parameter.add_(size * parameter.abs().mean() * noise)
    return net
