"""What training returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from .config import Config
from .events import Record
from .lr_search import LrSearch


@dataclass
class Run:
    """A trained network and how it came about.

    Arguments:
        net: the network, in evaluation mode.
        config: how it was trained.
        lr: the learning rate, given or found.
        history: a record per epoch.
        result: how the run ended; ``digest`` is that of every tensor of the final state.
        search: trials of the learning-rate search, if there was one.
        path: its folder, if it was saved.
    """

    net: nn.Module
    config: Config
    lr: float
    history: list[Record]
    result: dict[str, Any]
    search: LrSearch | None = None
    path: Path | None = None
