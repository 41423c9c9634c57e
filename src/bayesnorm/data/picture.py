"""Images of a data set as pictures that people can look at."""

from __future__ import annotations

import base64
import io

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Data

LARGEST = 128
"""Pixels of the longer side; larger images are reduced."""


def pictures(data: Data, images: Tensor) -> list[str]:
    """PNG files, in base64, of images ``(N, C, H, W)`` in the units of the data set: grey, or RGB for three channels.

    Bytes are shown as they are; otherwise the range of the training images is that from black to white.
    """
    known = data.train.images
    low, high = (0.0, 255.0) if known.dtype == torch.uint8 else [value.item() for value in known.aminmax()]
    values = (images.float() - low) / max(high - low, 1e-12)
    return [encoded(image) for image in (values if images.size(1) == 3 else values.mean(1, keepdim=True))]


def encoded(image: Tensor) -> str:
    """PNG file, in base64, of values ``(1 or 3, H, W)`` between 0 and 1.

    >>> encoded(torch.zeros(1, 4, 4))[:8]
    'iVBORw0K'
    """
    from PIL import Image

    longer = max(image.shape[1:])
    if longer > LARGEST:
        size = [max(1, round(side * LARGEST / longer)) for side in image.shape[1:]]
        image = F.interpolate(image[None].float(), size, mode="area")[0]
    pixels = (255 * image.clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).cpu()
    buffer = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy()).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
