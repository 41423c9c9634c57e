"""Figure 8: the cell data: an image, its segmentation, and the deformation on a grid. Trains nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ..data import stream
from ..data.augment import Augment
from ..data.base import IGNORE
from ..data.stream import Purpose
from ..report.drawing import new_figure, styled
from .exhibit import Exhibit, Measured
from .lab import Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 256
"""Pixels of a side that are stored."""


def grid(size: int, apart: int) -> Tensor:
    """White with black lines, ``(1, 1, size, size)``."""
    image = torch.ones(1, 1, size, size)
    image[:, :, ::apart] = 0.0
    image[:, :, :, ::apart] = 0.0
    return image


def measure(lab: Lab) -> Measured:
    """The pictures themselves, and what the data consists of."""
    data = lab.data(cells=True)
    height = data.image_size[1]
    finer = max(1, LARGEST // height)  # a grid needs more pixels than a small image has
    rows = stream.rows(0, Purpose.AUGMENT, 0, torch.zeros(1, dtype=torch.int64))
    only = Augment(deform=finer * data.augment.deform, spacing=finer * data.augment.spacing)
    deformed, _ = only(grid(finer * height, finer * height // 16), rows)
    targets = data.train.targets
    image, target = data.train.images[0, 0].float(), targets[0]
    numbers = {
        "images for training": len(data.train),
        "images for validation": len(data.val),
        "side of an image, pixels": height,
        "fraction of foreground": (targets[targets != IGNORE] == 1).double().mean().item(),
    }
    pictures = {
        "image": image,
        "segmentation": target.where(target != IGNORE, 0).float(),
        "deformation": deformed[0, 0],
    }
    return {"numbers": numbers, "pictures": {name: _small(values) for name, values in pictures.items()}}


def _small(image: Tensor) -> list[list[int]]:
    """0 to 255, reduced by averaging: thin lines stay."""
    image = avg_pool2d(image[None], -(-max(image.shape) // LARGEST), ceil_mode=True)[0]
    spread = (image.max() - image.min()).clamp(min=1e-12)
    return [[int(v) for v in row] for row in ((image - image.min()) / spread * 255).round().tolist()]


def draw(measured: Measured) -> Figure:
    """Left: an image; middle: its segmentation; right: a deformed grid."""
    figure = new_figure(10.5, 3.9)
    with styled():
        for axes, (name, pixels) in zip(figure.subplots(1, 3), measured["pictures"].items(), strict=True):
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(name, fontsize=11)
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
    return figure


exhibit = Exhibit(
    "fig8",
    "The cell data and its deformation",
    "20 fully annotated images of 512 x 512, 70 % for training and 30 % for validation; small non-rigid deformations.",
    {"images for training": 14, "images for validation": 6, "side of an image, pixels": 512},
    lambda preset: [],
    measure,
    draw,
    cells=True,
)
