"""Images as PNG files: what a decoder that is not ours reads from them."""

import base64
import io

import pytest
import torch
from torch import Tensor

from bayesnorm.data.base import Data, Split, make_data
from bayesnorm.data.picture import HIGHLIGHT, LARGEST, encoded, overlaid, pictures, visible

image_module = pytest.importorskip("PIL.Image")


def decoded(text: str) -> tuple[str, Tensor]:
    """Mode and pixels ``(C, H, W)``."""
    with image_module.open(io.BytesIO(base64.b64decode(text, validate=True))) as image:
        assert image.format == "PNG"
        pixels = torch.tensor(list(image.tobytes()), dtype=torch.uint8)
        return image.mode, pixels.view(image.height, image.width, len(image.getbands())).permute(2, 0, 1)


def data_of(images: Tensor) -> Data:
    targets = torch.arange(len(images)) % 2
    return make_data("mine", *[Split(images, targets)] * 3, ("a", "b"))


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_bytes_are_shown_as_they_are(channels: int, mode: str) -> None:
    """Whatever the training images are: the range of bytes is known."""
    images = random_bytes(5, channels, 6, 9)
    found = pictures(data_of(images // 2), images)
    assert len(found) == 5
    for text, image in zip(found, images, strict=True):
        assert decoded(text)[0] == mode
        assert torch.equal(decoded(text)[1], image)


def test_numbers_are_shown_in_the_range_of_the_training_images() -> None:
    """The darkest of them, which may be the last of many, is black, the brightest white; beyond there is nothing."""
    train = torch.full((300, 1, 2, 2), 1.0)
    train[7, 0, 1, 1], train[299, 0, 0, 0] = 3.0, -1.0
    (text,) = pictures(data_of(train), torch.tensor([[[[-1.0, 0.0], [2.0, 3.0]]]]))
    assert torch.equal(decoded(text)[1], torch.tensor([[[0, 64], [191, 255]]], dtype=torch.uint8))
    (text,) = pictures(data_of(train), torch.tensor([[[[-9.0, 1.0], [9.0, 3.1]]]]))
    assert torch.equal(decoded(text)[1], torch.tensor([[[0, 128], [255, 255]]], dtype=torch.uint8))


def test_channels_that_are_no_colours_are_averaged() -> None:
    images = random_bytes(2, 4, 5, 5)
    for text, image in zip(pictures(data_of(images), images), images, strict=True):
        mode, pixels = decoded(text)
        assert mode == "L"
        assert (pixels.double() - image.double().mean(0)).abs().max() <= 0.51


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((LARGEST, 3), (LARGEST, 3)),
        ((2 * LARGEST, LARGEST), (LARGEST, LARGEST // 2)),
        ((200, 300), (85, LARGEST)),
        ((1, 1000), (1, LARGEST)),
        ((5000, 2), (LARGEST, 1)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_large_images_are_reduced_and_keep_their_shape(size, expected, channels) -> None:
    pixels = decoded(encoded(torch.full((channels, *size), 0.4)))[1]
    assert pixels.shape == (channels, *expected)
    assert torch.equal(pixels, torch.full_like(pixels, 102))


def test_reducing_averages() -> None:
    """Stripes of two pixels become grey, not black or white."""
    stripes = (torch.arange(2 * LARGEST) % 2).float().expand(1, 2 * LARGEST, -1)
    pixels = decoded(encoded(stripes))[1]
    assert torch.equal(pixels, torch.full((1, LARGEST, LARGEST), 128, dtype=torch.uint8))


def test_segmented_bytes_are_stretched_to_what_is_not_rare() -> None:
    """Grey levels 100 to 103, but for a pixel in a thousand: 100 is black, 103 white, what is beyond is clamped."""
    images = (100 + torch.arange(4000) % 4).to(torch.uint8).view(10, 1, 20, 20)
    images[0, 0, 0, 0], images[0, 0, 0, 1] = 0, 255
    targets = (torch.arange(4000) % 2).view(10, 20, 20)
    data = make_data("cells", *[Split(images, targets)] * 3, ("background", "cell"))
    found = visible(data, images)
    assert found[1].unique().tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
    assert found[0, 0, 0, :2].tolist() == [0.0, 1.0]


def test_what_is_laid_over_an_image() -> None:
    image = torch.tensor([[[0.0, 1.0, 0.5]]])
    found = overlaid(image, torch.tensor([[0.0, 0.5, 2.0]]))
    expected = [[0.0, 0.0, 0.0], [(1 + part) / 2 for part in HIGHLIGHT], list(HIGHLIGHT)]
    torch.testing.assert_close(found[:, 0].T, torch.tensor(expected))
