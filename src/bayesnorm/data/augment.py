"""Augmentation on the device, all samples of a batch at once, from row hashes of the noise stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import noise


@dataclass(frozen=True)
class Augment:
    """What is done to an image, and to its mask along with it.

    Arguments:
        shift: largest translation in pixels, each way and in both axes; what comes in is 0, the mean of the
            standardized images.
        hflip: mirror left and right, half of the time.
        vflip: mirror top and bottom, half of the time.
        deform: std in pixels of a smooth random displacement; edges are reflected. 0: none.
        spacing: distance in pixels of the grid points at which the displacement is drawn.
    """

    shift: int = 0
    hflip: bool = False
    vflip: bool = False
    deform: float = 0.0
    spacing: int = 64

    def __post_init__(self) -> None:
        if self.shift < 0 or self.deform < 0 or self.spacing < 1:
            raise ValueError(f"{self}: shift and deform must not be negative, spacing at least 1")

    def __call__(self, images: Tensor, rows: Tensor, masks: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Augmented images and masks.

        Arguments:
            images: standardized ``(N, C, H, W)``.
            rows: int64 ``(N,)`` row hashes; equal rows are augmented alike.
            masks: int64 ``(N, H, W)``; every value of the result is one of theirs.
        """
        if self == NOTHING:
            return images, masks
        draws = noise.uniform(rows, noise.columns(0, 4, rows.device))
        if self.shift or self.hflip or self.vflip:
            images, masks = self._moved(images, masks, draws)
        if self.deform:
            images, masks = self._deformed(images, masks, rows)
        return images, masks

    def _moved(self, images: Tensor, masks: Tensor | None, draws: Tensor) -> tuple[Tensor, Tensor | None]:
        """Mirror and translate, by where each row and column comes from."""
        height, width = images.shape[2:]
        y = self._source(height, draws[:, 0] < 0.5 if self.vflip else None, draws[:, 1])
        x = self._source(width, draws[:, 2] < 0.5 if self.hflip else None, draws[:, 3])
        inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        images = _gather(images, y, x) * inside[:, None]
        if masks is not None:
            masks = _gather(masks[:, None], y, x)[:, 0]
        return images, masks

    def _source(self, size: int, flip: Tensor | None, draw: Tensor) -> Tensor:
        place = torch.arange(size, device=draw.device)[None].expand(len(draw), -1)
        if flip is not None:
            place = torch.where(flip[:, None], size - 1 - place, place)
        if self.shift:
            steps = 2 * self.shift + 1
            place = place + ((draw * steps).long().clamp(max=steps - 1) - self.shift)[:, None]
        return place

    def _deformed(self, images: Tensor, masks: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Displace every pixel by a smooth field; masks take the nearest label."""
        height, width = images.shape[2:]
        field = self.displacement(rows, height, width).to(images.dtype)
        # Nothing comes from the host, so that a CUDA graph can hold it; and no affine_grid, a product of matrices that
        # TF32 would round to a quarter of a pixel.
        x = (torch.arange(width, device=field.device) + field[..., 0]) * (2 / width) + (1 / width - 1)
        y = (torch.arange(height, device=field.device)[:, None] + field[..., 1]) * (2 / height) + (1 / height - 1)
        grid = torch.stack([x, y], -1)
        options: dict[str, Any] = {"padding_mode": "reflection", "align_corners": False}
        images = F.grid_sample(images, grid, "bilinear", **options)
        if masks is not None:
            masks = F.grid_sample(masks[:, None].to(images.dtype), grid, "nearest", **options)[:, 0].long()
        return images, masks

    def displacement(self, rows: Tensor, height: int, width: int) -> Tensor:
        """Displacement ``(N, H, W, 2)`` of every pixel, x before y, in pixels."""
        coarse = [max(2, -(-size // self.spacing) + 1) for size in (height, width)]
        columns = noise.columns(1, 2 * coarse[0] * coarse[1], rows.device)
        knots = noise.normal(rows, columns).view(len(rows), 2, *coarse) * self.deform
        smooth = F.interpolate(knots, (height, width), mode="bicubic", align_corners=True)
        return smooth.permute(0, 2, 3, 1)


NOTHING = Augment()


def _gather(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    lines = images.gather(2, y[:, None, :, None].expand_as(images))
    return lines.gather(3, x[:, None, None, :].expand_as(images))
