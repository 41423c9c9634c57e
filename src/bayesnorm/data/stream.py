"""Randomness of the data: every permutation and augmentation follows from (seed, epoch, step) alone."""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from .. import noise


class Purpose(enum.IntEnum):
    """Domains of the noise stream; ``_scope.py`` has 1 and 2, ``evaluate`` 12 to 14."""

    ORDER = 3
    AUGMENT = 4
    OTHERS = 5
    AUGMENT_VALIDATION = 6
    INPUT_STATISTICS = 7
    SPLIT = 8
    TEST_SPLIT = 9
    INITIALIZATION = 10
    AUGMENT_TRAINING_EVALUATION = 11
    STROKES = 15
    RESAMPLING = 16


def rows(seed: int, purpose: Purpose, step: int, samples: Tensor) -> Tensor:
    """Row hashes of samples, by their number ``(N,)`` in the step."""
    # Filled there, not copied from the host, which would wait for all that the device has to do.
    key = noise.derive(torch.full((), seed, dtype=torch.int64, device=samples.device), int(purpose))
    return noise.rows(key, torch.full_like(key, step), samples)


def permutation(seed: int, purpose: Purpose, step: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Random order of ``count`` things, the same on every device.

    >>> permutation(0, Purpose.ORDER, 0, 5)
    tensor([1, 2, 0, 3, 4])
    """
    return rows(seed, purpose, step, torch.arange(count, device=device)).argsort(stable=True)
