"""Pictures of the cell data keep what they show when they are reduced."""

import pytest
import torch

from bayesnorm.paper.fig8 import LARGEST, _small, grid


@pytest.mark.parametrize("apart", [1, 2, 3])
@pytest.mark.parametrize("offset", [0, 1])
def test_no_line_of_a_grid_is_lost(apart: int, offset: int) -> None:
    size, lines = LARGEST * apart, 16
    image = grid(size, size // lines)[0, 0].roll(offset, 0)
    pixels = torch.tensor(_small(image))
    assert pixels.shape == (LARGEST, LARGEST)
    dark = pixels[:, LARGEST // lines // 2] < 255
    assert int(dark.sum()) == lines
    assert dark.nonzero().flatten().tolist() == [i * LARGEST // lines + offset // apart for i in range(lines)]


def test_small_images_are_only_scaled_to_256_greys() -> None:
    assert _small(torch.tensor([[0.0, 2.0], [4.0, 1.0]])) == [[0, 128], [255, 64]]
    assert _small(torch.ones(2, 2)) == [[0, 0], [0, 0]]


def test_an_image_that_is_not_a_multiple_is_kept_whole() -> None:
    image = torch.zeros(LARGEST + 1, LARGEST + 1)
    image[-1, -1] = 1.0
    pixels = _small(image)
    assert len(pixels) == len(pixels[0]) == LARGEST // 2 + 1
    assert pixels[-1][-1] == 255
