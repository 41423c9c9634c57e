"""Image files as tensors, read by Pillow: named formats only, every failure a message that names the file."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import DataError

if TYPE_CHECKING:
    from PIL import Image

GREY = ("1", "L", "LA", "La")
DEEP = ("I", "F")
"""How Pillow's modes of more than 8 bits begin."""


def read(path: Path, formats: Sequence[str]) -> Image.Image:
    """The one image of a file, decoded and upright.

    Arguments:
        path: the file.
        formats: names of the formats that are tried, as Pillow has them.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise DataError("images are read with Pillow: pip install 'bayesnorm[cli]'") from error
    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            # What Pillow warns about (tags that it passes over) either does no harm or ends in an error below.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=list(formats)) as image:
                _check_single(path, image)
                _check_colours(path, image)
                image.load()
                ImageOps.exif_transpose(image, in_place=True)
                return image
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: not an image ({', '.join(formats)}); convert or remove it") from error
    except bombs as error:
        limit = f"{Image.MAX_IMAGE_PIXELS:,}"
        raise DataError(f"{path}: more than {limit} pixels, refused as a decompression bomb; remove it") from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; name an image") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error) as error:
        raise DataError(f"{path}: damaged or unreadable ({error}); replace or remove it") from error


def _check_single(path: Path, image: Image.Image) -> None:
    frames = getattr(image, "n_frames", 1)
    # The further images of an MPO, as phones write them into a .jpg, are previews of the first.
    if frames > 1 and image.format != "MPO":
        raise DataError(f"{path}: {frames} images in one file; put each into a file of its own")


def _check_colours(path: Path, image: Image.Image) -> None:
    """Refuse colours of 16 bits, of which Pillow would keep the upper 8 and say nothing."""
    layouts = [str(tile[3]) for tile in getattr(image, "tile", [])]
    if not image.mode.startswith(DEEP) and any(";16" in layout for layout in layouts):
        raise DataError(f"{path}: more than 8 bits per channel; convert it to 8 bits")


def check_depth(path: Path, image: Image.Image) -> None:
    """Refuse more than 8 bits per channel: what range of values to keep is not ours to guess."""
    if image.mode.startswith(DEEP):
        raise DataError(f"{path}: more than 8 bits per channel (mode {image.mode}); convert it to 8 bits")


def to_tensor(image: Image.Image, size: tuple[int, int] | None = None) -> Tensor:
    """uint8 ``(C, H, W)`` of a decoded image: one channel if it is grey, else RGB; no alpha, no palette.

    Arguments:
        image: what ``read`` returned.
        size: height and width to resize to, antialiased.
    """
    if image.mode in GREY:
        return _pixels(image.convert("L"), size)
    if image.mode not in ("P", "PA"):
        return _pixels(image.convert("RGB"), size)
    # By way of RGBA, since Pillow warns about the transparency of a palette that is simply dropped.
    pixels = _pixels(image.convert("RGBA").convert("RGB"), size)
    return pixels[:1] if bool((pixels == pixels[:1]).all()) else pixels


def _pixels(image: Image.Image, size: tuple[int, int] | None) -> Tensor:
    if size is not None and size != (image.height, image.width):
        from PIL import Image

        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(image.height, image.width, -1).permute(2, 0, 1).contiguous()
