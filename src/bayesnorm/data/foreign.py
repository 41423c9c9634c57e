"""Images of another kind, made such that a network can be asked about them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError
from .base import Data
from .folder import image_files, pixels_of


def foreign(directory: str | Path, data: Data) -> Tensor:
    """All images of a folder and its subfolders ``(N, C, H, W)``, with size, channels and units of a data set.

    Arguments:
        directory: the folder; files that are no images are refused, hidden ones are passed over.
        data: what the network was trained on.
    """
    channels, height, width = data.image_size
    files = image_files(Path(directory))
    if not files:
        raise DataError(f"{directory}: no images there; name a folder with image files")
    images = torch.stack([_in_channels(pixels_of(path, (height, width)), channels) for path in files])
    if data.train.images.dtype == torch.uint8:
        return images.to(data.device)
    low, high = data.train.images.amin().item(), data.train.images.amax().item()
    return (low + images.float() / 255 * (high - low)).to(data.device)


def _in_channels(image: Tensor, channels: int) -> Tensor:
    """Grey becomes coloured, colours become grey."""
    if len(image) == channels:
        return image
    if len(image) == 1:
        return image.expand(channels, -1, -1)
    return image.float().mean(0, keepdim=True).round().to(torch.uint8).expand(channels, -1, -1)
