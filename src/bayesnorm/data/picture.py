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


RARE = 0.002
"""Share of the pixels of segmented images, which have little contrast, that may be shown as black, and as white."""
LOOKED_AT = 1 << 22
"""Pixels of which these are found, evenly spread."""
HIGHLIGHT = (1.0, 0.32, 0.0)
"""Colour of what is laid over an image: it is seen on every grey, by every kind of colour vision."""


def pictures(data: Data, images: Tensor, largest: int = LARGEST) -> list[str]:
    """PNG files, in base64, of images ``(N, C, H, W)`` in the units of the data set: grey, or RGB for three channels.

    Arguments:
        largest: pixels of the longer side; larger images are reduced.
    """
    return [encoded(image, largest) for image in visible(data, images)]


def visible(data: Data, images: Tensor) -> Tensor:
    """Images ``(N, C, H, W)`` in the units of the data set as values between 0 and 1, ``(N, 1 or 3, H, W)``.

    Bytes are shown as they are, others from the lowest to the highest value of the training images; segmented images,
    which have little contrast, from the darkest to the brightest that is not rare.
    """
    low, high = _range(data)
    values = (images.float() - low) / max(high - low, 1e-12)
    return (values if images.size(1) == 3 else values.mean(1, keepdim=True)).clamp(0, 1)


def _range(data: Data) -> tuple[float, float]:
    """Values that are black and white."""
    known = data.train.images
    if data.per_pixel:
        values = known.flatten()[:: 1 + known.numel() // LOOKED_AT].sort().values
        last = len(values) - 1
        return float(values[int(RARE * last)]), float(values[last - int(RARE * last)])
    if known.dtype == torch.uint8:
        return 0.0, 255.0
    low, high = known.aminmax()
    return low.item(), high.item()


def overlaid(image: Tensor, values: Tensor) -> Tensor:
    """RGB ``(3, H, W)`` of an image, in grey, with values between 0 (nothing) and 1 (full colour) drawn over it.

    Arguments:
        image: values ``(1 or 3, H, W)`` between 0 and 1.
        values: ``(H, W)``.

    >>> overlaid(torch.full((1, 1, 2), 0.5), torch.tensor([[0.0, 1.0]])).flatten(1).T.tolist()[0]
    [0.5, 0.5, 0.5]
    """
    share = values.clamp(0, 1).to(image)
    colour = torch.tensor(HIGHLIGHT, device=image.device, dtype=image.dtype).view(3, 1, 1)
    return image.mean(0, keepdim=True) * (1 - share) + colour * share


def encoded(image: Tensor, largest: int = LARGEST) -> str:
    """PNG file, in base64, of values ``(1 or 3, H, W)`` between 0 and 1, reduced to ``largest`` pixels a side.

    >>> encoded(torch.zeros(1, 4, 4))[:8]
    'iVBORw0K'
    """
    from PIL import Image

    longer = max(image.shape[1:])
    if longer > largest:
        size = [max(1, round(side * largest / longer)) for side in image.shape[1:]]
        image = F.interpolate(image[None].float(), size, mode="area")[0]
    pixels = (255 * image.clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).cpu()
    buffer = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy()).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
