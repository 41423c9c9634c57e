"""The noise of batch normalization: ``(x - M) / S = ((x - mu) / sigma + V) U``, measured and modelled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._modes import mode
from .layers import NormLayer, norm_layers
from .moments.core import mean_var
from .norms import BatchNorm
from .scales import NoiseScale


class Chi(NamedTuple):
    """Moments of U and V in the model of independent normal activations."""

    mean_u: float
    sigma_u: float
    sigma_v: float


def chi(n: float) -> Chi:
    """``V ~ N(0, 1/n)`` and ``U = sqrt(n) / chi_{n-1}`` for n = batch x space, S the biased batch std; n > 3.

    ``E[U] = sqrt(n/2) Gamma((n-2)/2) / Gamma((n-1)/2)``, ``Var[U] = n/(n-3) - E[U]^2``.

    >>> [round(value, 4) for value in chi(32)]
    [1.0414, 0.1373, 0.1768]
    """
    if not n > 3:
        raise ValueError(f"chi(n={n}): the variance of U is finite for n > 3 values per channel only")
    m = n - 2
    if n < 1000:
        mean = math.sqrt(n / 2) * math.exp(math.lgamma(m / 2) - math.lgamma((n - 1) / 2))
        var = n / (n - 3) - mean**2
    else:
        # Gamma(x)^2 / Gamma(x + 1/2)^2 = (1 + 1/(4x) + 1/(32x^2) - 1/(128x^3) + ...) / x with x = m/2, where the
        # difference of two numbers near 1 is taken by hand.
        series = 1 / (2 * m) + 1 / (8 * m**2) - 1 / (16 * m**3)
        mean = math.sqrt(n / m * (1 + series))
        var = n / m * (1 / (n - 3) - series)
    return Chi(mean, math.sqrt(var), 1 / math.sqrt(n))


@dataclass(frozen=True)
class Measured:
    """Noise of one layer over the batches.

    Arguments:
        u: ``sigma / S`` per batch and channel; sigma^2 and S^2 contain the layer's eps.
        v: ``(mu - M) / sigma`` per batch and channel; mu and sigma are the statistics of all batches together.
        n: values per batch and channel.
    """

    u: Tensor
    v: Tensor
    n: int

    @property
    def sigma_u(self) -> Tensor:
        """Std of U per channel."""
        return self.u.std(0)

    @property
    def sigma_v(self) -> Tensor:
        """Std of V per channel."""
        return self.v.std(0)

    @property
    def model(self) -> Chi:
        """What independent normal activations would give."""
        return chi(self.n)


@torch.no_grad()
def measure(net: nn.Module, batches: Iterable[Tensor]) -> dict[str, Measured]:
    """U and V of every batch normalization of a network, torch's own or converted, over batches of inputs.

    Batch statistics propagate as in training, everything else is in evaluation mode, and no running statistic changes.

    Arguments:
        batches: at least two batches of one size, drawn as in training (with replacement for exact scaling in the batch
            size).
    """
    modules = _batch_norms(net)
    if not modules:
        raise ValueError("bn_noise.measure: the network has no batch normalization")
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in modules}
    counts: dict[str, set[int]] = {name: set() for name in modules}
    with _watching(modules, seen, counts), mode(net, False), _batch_mode(modules):
        for batch in batches:
            net(batch)
    if not any(seen.values()):
        raise ValueError("bn_noise.measure: there were no batches: pass two or more of one size")
    results = {}
    for name, found in seen.items():
        if not found:
            continue
        if len(found) < 2 or len(counts[name]) > 1:
            raise ValueError(
                f"bn_noise.measure: {name!r} saw {len(found)} batches of {sorted(counts[name])} values: "
                "pass two or more batches of one size"
            )
        results[name] = _noise([m for m, _ in found], [v for _, v in found], counts[name].pop(), _eps(modules[name]))
    return results


def _eps(module: nn.Module) -> float:
    return cast(float, module.eps)


def _noise(means: list[Tensor], variances: list[Tensor], n: int, eps: float) -> Measured:
    """With the eps that the layer normalizes with, so that a channel that is constant in a batch has a finite U."""
    m, v = torch.stack(means), torch.stack(variances)
    mu = m.mean(0)
    sigma = ((v + (m - mu) ** 2).mean(0) + eps).sqrt()
    return Measured(sigma / (v + eps).sqrt(), (mu - m) / sigma, n)


def _batch_norms(net: nn.Module) -> dict[str, nn.Module]:
    """Modules that normalize by the batch, by the name of their layer."""
    found: dict[str, nn.Module] = {}
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm):
            found[name] = module
        elif isinstance(module, NormLayer) and isinstance(module.norm, BatchNorm):
            found[name] = module.norm
    return found


@contextmanager
def _watching(
    modules: dict[str, nn.Module], seen: dict[str, list[tuple[Tensor, Tensor]]], counts: dict[str, set[int]]
) -> Iterator[None]:
    def watch(name: str) -> Any:
        def look(module: nn.Module, args: tuple[Any, ...]) -> None:
            x = args[0].double()
            seen[name].append(mean_var(x, 1))
            counts[name].add(x.numel() // x.size(1))

        return look

    handles = [module.register_forward_pre_hook(watch(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _batch_mode(modules: dict[str, nn.Module]) -> Iterator[None]:
    """Batch statistics in use, running ones as they were afterwards."""
    before = [(buffer, buffer.clone()) for module in modules.values() for buffer in module.buffers()]
    flags = [(module, module.training) for module in modules.values()]
    try:
        for module in modules.values():
            module.training = True
        yield
    finally:
        for module, flag in flags:
            module.training = flag
        for buffer, value in before:
            buffer.copy_(value)


@torch.no_grad()
def apply_(net: nn.Module, measured: dict[str, Measured], per: Literal["layer", "channel"] = "layer") -> None:
    """Set the noise of a network with ``scale="noise"`` to what was measured on a batch-normalized one.

    Layers are matched by name: a layer's own, or that of the BatchNorm it took over.

    Arguments:
        per: one value per layer (mean over channels, as in the paper) or one per channel.
    """
    if per not in ("layer", "channel"):
        raise ValueError(f"per={per!r}: choose 'layer' or 'channel'")
    layers = {name: layer for name, layer in norm_layers(net).items() if isinstance(layer.scale, NoiseScale)}
    if not layers:
        raise ValueError("bn_noise.apply_: the network has no noise scale: convert it with scale='noise'")
    changes = []
    for name, layer in layers.items():
        found = measured.get(name) or measured.get(layer.origin)
        if found is None:
            raise ValueError(f"bn_noise.apply_: nothing was measured for {name!r}; measured were {sorted(measured)}")
        scale = cast(NoiseScale, layer.scale)
        for buffer, value in ((scale.sigma_u, found.sigma_u), (scale.sigma_v, found.sigma_v)):
            if value.numel() != buffer.numel():
                raise ValueError(
                    f"bn_noise.apply_: {name!r} has {buffer.numel()} channels, but {value.numel()} were measured: "
                    "measure the network that it was converted from"
                )
            changes.append((buffer, value if per == "channel" else value.mean()))
    for buffer, value in changes:
        buffer.copy_(value)
