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
    return in_units_of(data, images, 0.0, 255.0)


def in_units_of(data: Data, images: Tensor, low: float, high: float) -> Tensor:
    """Images whose values go from ``low`` to ``high``, with the range, the type and the device of a data set."""
    if data.train.images.dtype == torch.uint8:
        if images.dtype == torch.uint8:
            return images.to(data.device)
        scaled = 255 * (images.float() - low) / max(high - low, 1e-12)
        return scaled.round().clamp(0, 255).to(data.device, torch.uint8)
    least, most = range_of(data)
    return (least + (images.float() - low) / max(high - low, 1e-12) * (most - least)).to(data.device)


def range_of(data: Data) -> tuple[float, float]:
    """Values of black and white in the images of a data set.

    >>> from bayesnorm.data.digits import digits
    >>> range_of(digits())
    (0.0, 16.0)
    """
    if data.train.images.dtype == torch.uint8:
        return 0.0, 255.0
    if data.span is not None:
        return data.span
    return data.train.images.amin().item(), data.train.images.amax().item()


def _in_channels(image: Tensor, channels: int) -> Tensor:
    """Grey becomes coloured, colours become grey."""
    if len(image) == channels:
        return image
    if len(image) == 1:
        return image.expand(channels, -1, -1)
    return image.float().mean(0, keepdim=True).round().to(torch.uint8).expand(channels, -1, -1)
