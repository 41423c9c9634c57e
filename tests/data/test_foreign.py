import pytest
import torch
from PIL import Image
from small_data import made_up

from bayesnorm.data import digits, foreign
from bayesnorm.data.base import Split, make_data
from bayesnorm.errors import DataError


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.numpy()).save(path)


def bytes_data(channels):
    images = torch.randint(0, 256, (6, channels, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = Split(images, torch.arange(6) % 2)
    return make_data("bytes", split, split, split, ("a", "b"))


def test_files_of_all_depths_in_the_order_of_their_names(tmp_path):
    shades = {"b.png": 10, "a/z.png": 20, "a/y.jpg": 30}
    for name, shade in shades.items():
        write(tmp_path / name, torch.full((4, 4), shade, dtype=torch.uint8))
    (tmp_path / ".hidden").write_text("no image")
    found = foreign(tmp_path, bytes_data(1))
    assert found.shape == (3, 1, 4, 4)
    assert found.dtype == torch.uint8
    assert found.amax((1, 2, 3)).tolist() == [30, 20, 10]


def test_grey_and_coloured_images_get_the_channels_of_the_data(tmp_path):
    write(tmp_path / "grey.png", torch.full((4, 4), 7, dtype=torch.uint8))
    write(tmp_path / "red.png", torch.tensor([90, 0, 0], dtype=torch.uint8).expand(4, 4, 3).contiguous())
    grey, red = foreign(tmp_path, bytes_data(3))
    assert grey.amin().item() == grey.amax().item() == 7
    assert red.amax((1, 2)).tolist() == [90, 0, 0]
    assert foreign(tmp_path, bytes_data(1))[1].unique().tolist() == [30]


def test_sizes_and_units_are_those_of_the_data(tmp_path):
    write(tmp_path / "white.png", torch.full((20, 31), 255, dtype=torch.uint8))
    write(tmp_path / "black.png", torch.zeros(3, 3, dtype=torch.uint8))
    black, white = foreign(tmp_path, digits())
    assert black.shape == white.shape == (1, 8, 8)
    assert black.unique().tolist() == [0.0]
    assert white.unique().tolist() == [16.0]


def test_what_is_no_folder_or_no_image_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        foreign(tmp_path / "missing", made_up())
    with pytest.raises(DataError, match="no images there"):
        foreign(tmp_path, made_up())
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(DataError, match=r"text\.png"):
        foreign(tmp_path, made_up())
