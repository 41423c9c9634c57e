"""Drawing the scales in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from . import noise
from .layers import norm_layers
from .runtime import MONTE_CARLO, Runtime, Sampling


def runtimes(net: nn.Module) -> list[Runtime]:
    """The runtimes of all converted networks inside ``net``."""
    return list(dict.fromkeys(layer.opening.runtime for layer in norm_layers(net).values()))


def sampling_key(runtime: Runtime, generator: torch.Generator | None) -> Tensor:
    """Key of Monte Carlo draws: the network's own, or one from a generator."""
    key = runtime.root.noise_key
    assert isinstance(key, Tensor)
    if generator is not None:
        key = torch.full_like(key, noise.draw_key(generator))
    return noise.derive(key, MONTE_CARLO)


@contextmanager
def sampling(net: nn.Module, *, generator: torch.Generator | None = None) -> Iterator[None]:
    """Inside, a network in evaluation mode draws its scales, anew at each call; restored also after an exception.

    The i-th call draws what sample i of :func:`bayesnorm.predict` draws. The noise of training is not touched.

    Arguments:
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
    before = [(runtime, runtime.sampling) for runtime in runtimes(net)]
    try:
        for runtime, _ in before:
            key = sampling_key(runtime, generator)
            runtime.sampling = Sampling(key, torch.zeros_like(key))
        yield
    finally:
        for runtime, old in before:
            runtime.sampling = old
