"""Random statistics for the batch normalizations of a network: those of batches, or of a model of their noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import noise
from ..bn_noise import Measured, _batch_mode, _batch_norms, _watching
from ..norms import BatchNorm

Normalization = _BatchNorm | BatchNorm
Statistics = dict[str, tuple[Tensor, Tensor]]
"""Mean and biased variance per channel, in float64, by the name of the layer."""

STOCHASTIC_BN = 13
"""Domain of the noise stream, beside those of ``data.stream.Purpose`` and ``_scope.py``."""

_BUFFERS = ("running_mean", "running_var")


def normalizations(net: nn.Module) -> dict[str, Normalization]:
    """torch's batch normalizations and those of converted layers, by the name of their layer."""
    found = cast("dict[str, Normalization]", _batch_norms(net))
    if not found:
        raise ValueError(f"{type(net).__name__} has no batch normalization: choose a network that has")
    return found


def normalizes_by_batches(net: nn.Module) -> bool:
    """Whether there is a batch normalization."""
    return bool(_batch_norms(net))


@contextmanager
def restored(modules: Mapping[str, Normalization]) -> Iterator[None]:
    """Running statistics may be overwritten inside; afterwards, also after an exception, they are as they were."""
    before = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for module in modules.values()
        for name in _BUFFERS
        for buffer in [cast("Tensor | None", getattr(module, name))]
    ]
    try:
        yield
    finally:
        for module, name, buffer, value in before:
            if buffer is not None and value is not None:
                buffer.copy_(value)
            setattr(module, name, buffer)


def use(modules: Mapping[str, Normalization], statistics: Statistics) -> None:
    """Make these the running statistics; to be called inside :func:`restored`."""
    for name, found in statistics.items():
        module = modules[name]
        for buffer, value in zip(_BUFFERS, found, strict=True):
            if getattr(module, buffer) is None:  # track_running_stats=False
                setattr(module, buffer, value.float())
            else:
                getattr(module, buffer).copy_(value)


def statistics_of(net: nn.Module, modules: Mapping[str, Normalization], batch: Tensor) -> Statistics:
    """Statistics of each layer's input where the layers before it normalize by the batch, as in training."""
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in modules}
    counts: dict[str, set[int]] = {name: set() for name in modules}
    plain = cast("dict[str, nn.Module]", modules)
    with _watching(plain, seen, counts), _batch_mode(plain):
        net(batch)
    return {name: _pooled(found) for name, found in seen.items() if found}


def _pooled(found: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Of all calls of a layer that is used more than once: running statistics are one for all of them, too."""
    means, variances = (torch.stack(values) for values in zip(*found, strict=True))
    mean = means.mean(0)
    return mean, (variances + (means - mean).square()).mean(0)


def noisy(module: Normalization, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Statistics with which ``(x - M) / S = ((x - mu) / sigma + V) U`` for the running ``mu`` and ``sigma``.

    ``M = mu - V sigma`` and ``S^2 = sigma^2 / U^2``, where sigma^2 and S^2 contain eps. No batch has an S^2 below eps,
    so U counts up to ``sigma / sqrt(eps)``: where a channel was constant in a batch, more was measured.
    """
    mu, var = (cast(Tensor, getattr(module, name)).double() for name in _BUFFERS)
    square = var + module.eps
    return mu - v * square.sqrt(), (square / u.square() - module.eps).clamp(min=0)


def noise_draws(
    law: Measured | int, layer: int, channels: int, samples: int, seed: int = 0, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Draws of U and V of one layer, each ``(samples, channels)`` in float64, a function of (seed, layer, draw).

    Arguments:
        law: what was measured, of which each draw is one batch; or the number n of values per channel, for the model of
            independent normal activations, ``V ~ N(0, 1/n)`` and ``U = sqrt(n) / chi_{n-1}``, independent by channel.
        layer: number of the layer.
    """
    key = noise.derive(torch.tensor(seed, dtype=torch.int64), STOCHASTIC_BN)
    rows = noise.rows(key, torch.zeros_like(key), torch.arange(samples))
    if isinstance(law, Measured):
        uniform = noise.uniform(rows, noise.columns(2 * layer, 1)).double().flatten()
        chosen = (uniform * len(law.u)).long().to(law.u.device)
        u, v = law.u[chosen], law.v[chosen]
    else:
        from scipy.special import gammaincinv

        uniform = noise.uniform(rows, noise.columns(2 * layer, channels)).double()
        square = 2 * torch.as_tensor(gammaincinv((law - 1) / 2, uniform.numpy()))
        u = (law / square).sqrt()
        v = noise.normal(rows, noise.columns(2 * layer + 1, channels), bound=None).double() / math.sqrt(law)
    return u.to(device, torch.float64), v.to(device, torch.float64)


def laws(
    net: nn.Module, modules: Mapping[str, Normalization], given: Mapping[str, Measured] | int, x: Tensor
) -> dict[str, Measured | int]:
    """The law of U and V for each layer that ``x`` goes through.

    Arguments:
        given: measured noise by layer, or the size of the training batch: then n is that times the layer's positions.
    """
    positions = _positions(net, modules, x)
    if isinstance(given, int):
        return {name: _count(name, given * many) for name, many in positions.items()}
    return {name: _measured(net, name, modules[name], given) for name in positions}


def _count(name: str, n: int) -> int:
    if n <= 3:
        raise ValueError(
            f"{name!r} has n={n} values per channel in a batch, but U has no variance for n <= 3: pass more"
        )
    return n


def _measured(net: nn.Module, name: str, module: Normalization, given: Mapping[str, Measured]) -> Measured:
    found = given.get(name) or given.get(getattr(net.get_submodule(name), "origin", name))
    if found is None:
        raise ValueError(f"nothing was measured for {name!r}: measure this network; measured were {sorted(given)}")
    channels = cast(Tensor, module.running_mean).numel()
    if found.u.size(1) != channels:
        raise ValueError(f"{name!r} has {channels} channels, but {found.u.size(1)} were measured: measure this network")
    return found


def _positions(net: nn.Module, modules: Mapping[str, Normalization], x: Tensor) -> dict[str, int]:
    """Values per input and channel of the layers that ``x`` goes through."""
    found: dict[str, int] = {}
    handles = []
    try:
        for name, module in modules.items():
            if module.running_mean is None:
                raise ValueError(f"{name!r} has no running statistics to add noise to: use mc_batch_norm instead")
            channels = module.running_mean.numel()

            def look(_: nn.Module, args: object, out: Tensor, name: str = name, channels: int = channels) -> None:
                found[name] = out.numel() // (out.size(0) * channels)

            handles.append(net.get_submodule(name).register_forward_hook(look))
        net(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    return found
