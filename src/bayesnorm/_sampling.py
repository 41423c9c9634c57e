"""Drawing the scales in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from . import noise
from ._scope import MONTE_CARLO, Sampling
from .layers import norm_layers
from .runtime import Runtime


def runtimes(net: nn.Module) -> list[Runtime]:
    """The runtimes of all converted networks inside ``net``."""
    return list(dict.fromkeys(layer.opening.runtime for layer in norm_layers(net).values()))


def sampling_key(runtime: Runtime, generator: torch.Generator | None) -> Tensor:
    """Key of Monte Carlo draws: the network's own, or one from a generator."""
    key = runtime.buffer("noise_key")
    if generator is not None:
        key = torch.full_like(key, noise.draw_key(generator))
    return noise.derive(key, MONTE_CARLO)


@contextmanager
def with_each(networks: Sequence[Runtime], name: str, values: Sequence[Any]) -> Iterator[None]:
    """Inside, an attribute of each of these networks has its value."""
    before = [getattr(runtime, name) for runtime in networks]
    try:
        for runtime, value in zip(networks, values, strict=True):
            setattr(runtime, name, value)
        yield
    finally:
        for runtime, old in zip(networks, before, strict=True):
            setattr(runtime, name, old)


def drawing(
    networks: Sequence[Runtime], generator: torch.Generator | None, **options: Any
) -> AbstractContextManager[None]:
    """Inside, these networks draw their scales in evaluation mode; ``options`` are those of :class:`Sampling`."""
    keys = [sampling_key(runtime, generator) for runtime in networks]
    return with_each(networks, "sampling", [Sampling(key, torch.zeros_like(key), **options) for key in keys])


def still(net: nn.Module) -> AbstractContextManager[None]:
    """Inside, a network in evaluation mode has its mean scales, also in the middle of :func:`sampling`."""
    networks = runtimes(net)
    return with_each(networks, "sampling", [None] * len(networks))


def numbered(networks: Sequence[Runtime], samples: Tensor | None) -> AbstractContextManager[None]:
    """Inside, training noise takes the number of each sample of the batch from ``samples``."""
    return with_each(networks, "samples", [samples] * len(networks))


@contextmanager
def sampling(
    net: nn.Module, *, shared: bool = False, held: bool = False, generator: torch.Generator | None = None
) -> Iterator[None]:
    """Inside, a network in evaluation mode draws its scales, anew at each call; restored also after an exception.

    The i-th call draws what sample i of :func:`bayesnorm.predict` draws. The noise of training is not touched.

    ``shared`` and ``held`` together make it one network of the posterior, for all inputs and calls: the tiles of an
    image or the steps of an episode are seen by the same one. A generator that goes on gives another at the next
    ``with``.

    Arguments:
        shared: one draw for all inputs of a call; else each input, by its place in the batch, has its own.
        held: all calls draw what the first draws.
        generator: gives another key, hence other draws.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes").eval()
    >>> x = torch.randn(2, 4)
    >>> with sampling(net):
    ...     print(torch.equal(net(x), net(x)))
    False
    >>> torch.equal(net(x), net(x))
    True
    """
    with drawing(runtimes(net), generator, shared=shared, held=held):
        yield
