"""A small data set in the layout of the Cell Tracking Challenge: frames of drawn blobs with their masks."""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 48
CELLS = 4


def draw_cells(root: Path, frames: int = 5, sequences: tuple[str, ...] = ("01", "02"), side: int = SIDE) -> Path:
    """Blobs that are brighter or darker than their surroundings in uneven light, with noise; some touch."""
    for sequence in sequences:
        generator = np.random.default_rng(int(sequence))
        for number in range(frames):
            numbers = _numbers(generator, side)
            y, x = np.mgrid[:side, :side] / side
            light = 110 + 40 * generator.uniform(-1, 1) * x + 40 * generator.uniform(-1, 1) * y
            pixels = light + 45 * (numbers > 0) + generator.normal(0, 8, (side, side))
            _save(root / sequence / f"t{number:03d}.tif", pixels.clip(0, 255).astype(np.uint8))
            for kind in ("GT", "ST"):
                _save(root / f"{sequence}_{kind}" / "SEG" / f"man_seg{number:03d}.tif", numbers)
    return root


def _numbers(generator: np.random.Generator, side: int) -> np.ndarray:
    """Number of the cell at each pixel: ellipses, the later ones below the earlier."""
    numbers = np.zeros((side, side), np.uint16)
    y, x = np.mgrid[:side, :side]
    for number in range(1, CELLS + 1):
        cy, cx = generator.uniform(0.15 * side, 0.85 * side, 2)
        ry, rx = generator.uniform(0.1 * side, 0.2 * side, 2)
        inside = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1
        numbers[inside & (numbers == 0)] = number
    return numbers


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, compression="tiff_lzw")
