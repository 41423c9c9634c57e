"""How thoroughly a reproduction is run: seconds on the digits, minutes on CIFAR-10, or the paper's full protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """What stands for the paper's experiments.

    Arguments:
        name: of the preset.
        about: in words.
        images: settings of the classification runs.
        cells: settings of the segmentation runs.
        lr: learning rates by norm; a norm that is missing has it found by search, as in the paper.
        norm_batch: the large normalization batch of figure 2.
        batch_sizes: training batches of figure A1.
        seeds: of figure A2.
        noise_sizes: batch sizes of figure 4.
        noise_batches: batches of each size, there.
        robustness: test images that are disturbed in figure A4; None: all.
    """

    name: str
    about: str
    images: Settings
    cells: Settings
    lr: dict[str, float] = field(default_factory=dict)
    norm_batch: int = 1024
    batch_sizes: tuple[int, ...] = (8, 32, 128, 512)
    seeds: tuple[int, ...] = (0, 1, 2)
    noise_sizes: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    noise_batches: int = 300
    robustness: int | None = None

    def settings(self, cells: bool, norm: str) -> Settings:
        """Settings of a run, without what its method decides."""
        chosen = self.cells if cells else self.images
        lr: Settings = {"lr": self.lr[norm]} if norm in self.lr and not cells else {}
        return {**chosen, **lr}


DIGITS_LR = {"none": 0.017, "batch": 0.045, "weight": 0.004, "analytic": 0.013}
"""Found by a search on the digits."""

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "smoke",
            "scikit-learn's digits, a few epochs: that everything works, in a minute or two",
            images={"data": "digits", "epochs": 4},
            cells={"data": "strokes", "epochs": 4, "lr": 0.003, "width": 0.25},
            lr=DIGITS_LR,
            norm_batch=128,
            batch_sizes=(16, 32, 128),
            noise_sizes=(32, 64, 128, 256, 512),
        ),
        Preset(
            "digits",
            "the digits for 50 epochs: the shapes of the curves, in about twenty minutes on two cores",
            images={"data": "digits", "epochs": 50},
            cells={"data": "strokes", "epochs": 30, "lr": 0.003},
            lr=DIGITS_LR,
            norm_batch=256,
            batch_sizes=(16, 32, 128),
        ),
        Preset(
            "short",
            "CIFAR-10 for 10 epochs, the cells for 30, learning rates given: minutes for each run on a GPU",
            images={"data": "cifar10", "epochs": 10, "precision": "bf16"},
            cells={"data": "cells", "epochs": 30, "lr": 0.003},
            lr={"none": 0.01, "batch": 0.05, "weight": 0.003, "analytic": 0.003},
            batch_sizes=(32, 128, 512),
            robustness=2000,
        ),
        Preset(
            "paper",
            "the full protocol: CIFAR-10 for 1200 epochs, the cells for 3000, learning rates found by search",
            images={"data": "cifar10", "precision": "bf16"},
            cells={"data": "cells"},
        ),
    )
}
