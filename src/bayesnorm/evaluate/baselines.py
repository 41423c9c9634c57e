"""Other ways to average over random networks, on the same footing as :func:`bayesnorm.predict`.

All return the logarithm of the mean of the class probabilities, ``(N, C, *space)``, of a batch or of the pieces of a
split (``images for images, _ in images_of(data, "test")``), without gradients, in evaluation mode but for what they are
about. Scales of converted layers are at their means. Afterwards, also after an exception, the network is as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from .. import noise as stream
from .._modes import mode
from .._predict import predict
from ..bn_noise import Measured
from ..data.base import Data
from ..data.batches import Batches
from ._averaging import Inputs, averaged, pieces
from ._bn_draws import Normalization, Statistics, laws, noise_draws, noisy, normalizations, restored, statistics_of, use

DROPOUT = 14
"""Domain of the noise stream, beside those of ``data.stream.Purpose``, ``_scope.py`` and ``_bn_draws.py``."""


@torch.no_grad()
def mc_batch_norm(
    net: nn.Module, x: Inputs, batches: Iterable[Tensor], samples: int = 30, max_rows: int | None = None
) -> Tensor:
    """Monte Carlo batch normalization (Teye et al., 2018): each draw normalizes by the statistics of a training batch.

    The statistics, of torch's layers and of converted ones, are those that training would use, with the biased
    variance; inputs do not take part in them. The trained running statistics stay as they are.

    Arguments:
        x: inputs ``(N, ...)``, or pieces of them.
        batches: random training batches, such as :func:`training_batches`; the first ``samples`` are used.
        samples: number of draws.
        max_rows: most inputs at a time; None: by their size.
    """
    _check(samples)
    modules = normalizations(net)
    with mode(net, False), restored(modules):
        draws = [statistics_of(net, modules, batch) for batch in itertools.islice(batches, samples)]
        if len(draws) < samples:
            raise ValueError(f"mc_batch_norm: {len(draws)} batches for samples={samples}: pass one for each draw")
        return _with_statistics(net, modules, draws, x, max_rows)


@torch.no_grad()
def stochastic_batch_norm(
    net: nn.Module,
    x: Inputs,
    noise: Mapping[str, Measured] | int,
    samples: int = 30,
    seed: int = 0,
    max_rows: int | None = None,
) -> Tensor:
    """Stochastic batch normalization (Atanov et al., 2018): ``((x - mu) / sigma + V) U s + b`` with drawn U and V.

    mu and sigma are the trained running statistics. A draw of U and V per layer and channel holds for all inputs, as
    the statistics of a batch do; layers are independent of each other.

    Arguments:
        x: inputs ``(N, ...)``, or pieces of them.
        noise: what ``bn_noise.measure`` found on this network, of which each layer draws a batch; or the size of the
            training batch, for the chi model with n = batch x positions (of the first input).
        samples: number of draws.
        seed: draw i depends on it, the layer and i alone.
        max_rows: most inputs at a time; None: by their size.
    """
    _check(samples)
    modules = normalizations(net)
    parts = pieces(x, max_rows)
    start = next(parts, None)
    if start is None:
        raise ValueError("stochastic_batch_norm: x holds no input: pass at least one")
    with mode(net, False), restored(modules):
        draws: list[Statistics] = [{} for _ in range(samples)]
        for layer, (name, law) in enumerate(laws(net, modules, noise, start).items()):
            mean = modules[name].running_mean
            assert mean is not None
            for draw, u, v in zip(
                draws, *noise_draws(law, layer, mean.numel(), samples, seed, mean.device), strict=True
            ):
                draw[name] = noisy(modules[name], u, v)
        return _with_statistics(net, modules, draws, itertools.chain([start], parts), max_rows)


def _with_statistics(
    net: nn.Module,
    modules: Mapping[str, Normalization],
    draws: Sequence[Statistics],
    x: Inputs,
    max_rows: int | None,
) -> Tensor:
    def outputs(piece: Tensor, first: int) -> Iterator[object]:
        for statistics in draws:
            use(modules, statistics)
            yield net(piece.clone())  # a first layer may work in place

    return averaged(x, max_rows, outputs)


@torch.no_grad()
def mc_dropout(net: nn.Module, x: Inputs, samples: int = 30, seed: int = 0, max_rows: int | None = None) -> Tensor:
    """Monte Carlo dropout (Gal and Ghahramani, 2016): torch's dropout layers drop, all else is in evaluation mode.

    Dropout by function inside a ``forward`` follows the flag of its own module and does not take part.

    Arguments:
        x: inputs ``(N, ...)``, or pieces of them.
        samples: number of draws.
        seed: gives the same draws for the same device and the same pieces; torch's own generators are left as they are.
        max_rows: most inputs at a time; None: by their size.
    """
    _check(samples)
    layers = dropouts(net)
    if not layers:
        raise ValueError(f"mc_dropout: {type(net).__name__} has no dropout layer: choose a network that has")
    key = stream.derive(torch.tensor(seed, dtype=torch.int64), DROPOUT)

    def outputs(piece: Tensor, first: int) -> Iterator[object]:
        for number in stream.rows(key, torch.arange(samples), torch.full((samples,), first)).tolist():
            with _seeded(piece.device, number):
                out = net(piece.clone())  # a first layer may work in place
            yield out

    with mode(net, False):
        for layer in layers:
            layer.training = True
        return averaged(x, max_rows, outputs)


def dropouts(net: nn.Module) -> list[nn.Module]:
    """torch's dropout layers of a network."""
    return [module for module in net.modules() if isinstance(module, _DropoutNd)]


@contextmanager
def _seeded(device: torch.device, number: int) -> Iterator[None]:
    """torch's generator of this device starts from a number, and goes on as before afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # Not torch.manual_seed, which would seed every GPU, also those that are not put back.
        torch.default_generator.manual_seed(number)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number)
        yield


def deep_ensemble(nets: Sequence[nn.Module], x: Inputs, samples: int = 0, max_rows: int | None = None) -> Tensor:
    """Deep ensemble (Lakshminarayanan et al., 2017): the mean of the probabilities of networks trained apart.

    Arguments:
        nets: at least one, all with the same classes.
        x: inputs ``(N, ...)``, or pieces of them.
        samples: draws of the scales of each member; 0 for a single pass with their means.
        max_rows: most inputs at a time; None: by their size.
    """
    if len(nets) == 0:
        raise ValueError("deep_ensemble: there are no networks: pass at least one")

    def outputs(piece: Tensor, first: int) -> Iterator[object]:
        for net in nets:
            yield predict(net, piece, samples=samples, first=first).log_probs

    return averaged(x, max_rows, outputs)


def training_batches(data: Data, batch: int, seed: int = 0) -> Iterator[Tensor]:
    """Endless random training batches ``(batch, C, H, W)``, augmented, as in training; a short last one is left out.

    >>> from bayesnorm.data.digits import digits
    >>> next(training_batches(digits(), 16)).shape
    torch.Size([16, 1, 8, 8])
    """
    batches = Batches(data, batch, seed)
    for epoch in itertools.count():
        for index in range(len(data.train) // batch):
            yield batches(epoch, index).images


def _check(samples: int) -> None:
    if samples < 1:
        raise ValueError(f"samples={samples}: pass the number of draws, at least 1")
