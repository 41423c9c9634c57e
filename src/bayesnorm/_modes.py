"""Train and evaluation flags, put back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put every module into one mode; each gets its own back, also after an exception."""
    flags = {module: module.training for module in model.modules()}
    try:
        for module in flags:
            module.training = training
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag
