"""The baselines of trained networks on one footing: judged on the test split, calibrated on the validation split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from .. import bn_noise
from ..data.base import Data
from ..data.passes import images_of, moves
from ._bn_draws import normalizes_by_batches
from .baselines import deep_ensemble, dropouts, mc_batch_norm, mc_dropout, stochastic_batch_norm, training_batches
from .panel import Judgement, Predicted, judge

MEASURED = 100
"""Batches by which the noise of batch norm is measured."""

Averaged = Callable[[Iterable[Tensor]], Tensor]
"""Log-probabilities of all images, from pieces of them."""


def judged(average: Averaged, data: Data, seed: int = 0, part: str = "test") -> Judgement:
    """Judge a baseline.

    Arguments:
        average: one of the functions of ``baselines`` with all its arguments but the inputs.
        data: on the device of the network.
        seed: of the augmentation of validation images.
        part: the split that is judged; there is no temperature where it is the one by which that would be fitted.
    """

    def predicted(name: str) -> Iterator[Predicted]:
        log_probs = average(images for images, _ in images_of(data, name, seed))
        targets = torch.cat([targets for _, targets in images_of(data, name, seed)])
        yield log_probs, None, targets, None if moves(data, name) else data.part(name).objects

    return judge(predicted, part, calibrate=part != "test" or data.has_test)


def of_network(net: nn.Module, data: Data, batch: int, samples: int = 30, seed: int = 0) -> dict[str, Judgement]:
    """The baselines that a network allows: by the noise of its batch norms, by its dropout; none of these: none.

    Arguments:
        batch: size of the training batches.
        samples: number of draws.
    """
    return {
        **(of_batch_norm(net, data, batch, samples, seed) if normalizes_by_batches(net) else {}),
        **(of_dropout(net, data, samples, seed) if dropouts(net) else {}),
    }


def allows_baselines(net: nn.Module) -> bool:
    """Whether :func:`of_network` has any."""
    return normalizes_by_batches(net) or bool(dropouts(net))


def of_batch_norm(net: nn.Module, data: Data, batch: int, samples: int = 30, seed: int = 0) -> dict[str, Judgement]:
    """Test-time noise of a network trained with batch norm: statistics of batches, and models of them.

    Arguments:
        batch: size of the training batches.
        samples: number of draws.
    """
    measured = bn_noise.measure(net, islice(training_batches(data, batch, seed + 1), MEASURED))
    ways: dict[str, Averaged] = {
        "MC-BN": lambda x: mc_batch_norm(net, x, training_batches(data, batch, seed), samples),
        "SBN": lambda x: stochastic_batch_norm(net, x, measured, samples, seed),
        "SBN chi": lambda x: stochastic_batch_norm(net, x, batch, samples, seed),
    }
    return {name: judged(way, data, seed) for name, way in ways.items()}


def of_dropout(net: nn.Module, data: Data, samples: int = 30, seed: int = 0) -> dict[str, Judgement]:
    """MC dropout of a network that was trained with dropout."""
    return {"MC-drop": judged(lambda x: mc_dropout(net, x, samples, seed), data, seed)}


def of_ensemble(nets: Sequence[nn.Module], data: Data, samples: int = 0, seed: int = 0) -> dict[str, Judgement]:
    """A deep ensemble, of single passes or of Monte Carlo predictions."""
    return {"average": judged(lambda x: deep_ensemble(nets, x, samples), data, seed)}
