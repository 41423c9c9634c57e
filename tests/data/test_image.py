import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from bayesnorm.data.folder import FORMATS
from bayesnorm.data.image import check_depth, read, to_tensor
from bayesnorm.errors import DataError

COLOURS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
GREYS = COLOURS[:, :, 0]
LOSSLESS = {"PNG": "png", "BMP": "bmp", "TIFF": "tif", "PPM": "ppm"}


def expected(pixels):
    return torch.from_numpy(pixels.reshape(5, 7, -1)).permute(2, 0, 1)


def load(path):
    return to_tensor(read(path, FORMATS))


@pytest.mark.parametrize("ending", LOSSLESS.values())
@pytest.mark.parametrize("pixels", [COLOURS, GREYS], ids=["colour", "grey"])
def test_lossless_formats_are_exact(tmp_path, ending, pixels):
    Image.fromarray(pixels).save(tmp_path / f"a.{ending}")
    assert torch.equal(load(tmp_path / f"a.{ending}"), expected(pixels))


def test_webp_lossless(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "a.webp", lossless=True)
    assert torch.equal(load(tmp_path / "a.webp"), expected(COLOURS))


@pytest.mark.parametrize("ending", ["gif", "png"])
def test_palette_is_expanded(tmp_path, ending):
    pixels = (COLOURS // 128 * 255).astype(np.uint8)
    made = Image.fromarray(pixels).quantize(8, dither=Image.Dither.NONE)
    assert made.mode == "P"
    made.save(tmp_path / f"a.{ending}")
    assert torch.equal(load(tmp_path / f"a.{ending}"), expected(pixels))


@pytest.mark.parametrize("transparency", [3, bytes(range(8))])
def test_transparency_of_a_palette_is_dropped(tmp_path, transparency):
    pixels = (COLOURS // 128 * 255).astype(np.uint8)
    made = Image.fromarray(pixels).quantize(8, dither=Image.Dither.NONE)
    made.save(tmp_path / "a.png", transparency=transparency)
    assert torch.equal(load(tmp_path / "a.png"), expected(pixels))


def test_palette_of_greys_is_grey(tmp_path):
    made = Image.new("P", (7, 5))
    made.putpalette([value for grey in (10, 90, 40, 200) for value in (grey,) * 3])
    made.putdata((GREYS % 4).flatten().tolist())
    made.save(tmp_path / "a.png")
    assert torch.equal(load(tmp_path / "a.png"), expected(np.array([10, 90, 40, 200], np.uint8)[GREYS % 4]))


@pytest.mark.parametrize(("mode", "pixels"), [("RGBA", COLOURS), ("LA", GREYS)])
def test_alpha_is_dropped(tmp_path, mode, pixels):
    made = Image.fromarray(pixels)
    made.putalpha(Image.fromarray(255 - GREYS))
    assert made.mode == mode
    made.save(tmp_path / "a.png")
    assert torch.equal(load(tmp_path / "a.png"), expected(pixels))


def test_black_and_white(tmp_path):
    Image.fromarray(GREYS > 128).save(tmp_path / "a.png")
    assert torch.equal(load(tmp_path / "a.png"), expected((GREYS > 128).astype(np.uint8) * 255))


def test_cmyk_is_converted(tmp_path):
    Image.new("CMYK", (7, 5), (0, 255, 255, 0)).save(tmp_path / "a.jpg")
    red = load(tmp_path / "a.jpg").float()
    assert red.shape == (3, 5, 7)
    assert (red - torch.tensor([255.0, 0, 0]).view(3, 1, 1)).abs().max() < 10


def test_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(COLOURS).save(tmp_path / "a.png", exif=exif)
    assert torch.equal(load(tmp_path / "a.png"), expected(COLOURS).rot90(-1, (1, 2)))


def test_resize_is_antialiased(tmp_path):
    board = ((np.arange(64)[:, None] + np.arange(64)) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "a.png")
    small = to_tensor(read(tmp_path / "a.png", FORMATS), (8, 16))
    assert small.shape == (1, 8, 16)
    assert (small.float() - 127.5).abs().max() < 3


@pytest.mark.parametrize("kind", ["int32", "uint16", "float32"])
def test_more_than_eight_bits(tmp_path, kind):
    Image.fromarray(GREYS.astype(kind)).save(tmp_path / "a.tif")
    image = read(tmp_path / "a.tif", FORMATS)
    with pytest.raises(DataError, match=r"a\.tif: more than 8 bits"):
        check_depth(tmp_path / "a.tif", image)


@pytest.mark.parametrize("ending", ["gif", "tif", "webp", "png"])
def test_several_images_in_a_file(tmp_path, ending):
    first, second = Image.fromarray(COLOURS), Image.fromarray(255 - COLOURS)
    first.save(tmp_path / f"a.{ending}", save_all=True, append_images=[second])
    with pytest.raises(DataError, match="2 images in one file"):
        read(tmp_path / f"a.{ending}", FORMATS)


def test_previews_in_a_jpeg_are_passed_over(tmp_path):
    first, second = Image.fromarray(COLOURS), Image.fromarray(255 - COLOURS)
    first.save(tmp_path / "alone.jpg")
    first.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[second])
    assert torch.equal(load(tmp_path / "a.jpg"), load(tmp_path / "alone.jpg"))


@pytest.mark.parametrize("ending", [*LOSSLESS.values(), "jpg", "gif", "webp"])
@pytest.mark.parametrize("kept", [0.4, 0.7])
def test_truncated(tmp_path, ending, kept):
    path = tmp_path / f"a.{ending}"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(DataError, match=rf"a\.{ending}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_flipped_bit_in_a_png(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "a.png")
    damaged = bytearray((tmp_path / "a.png").read_bytes())
    damaged[60] ^= 8
    (tmp_path / "a.png").write_bytes(damaged)
    with pytest.raises(DataError, match=r"a\.png: damaged"):
        load(tmp_path / "a.png")


@pytest.mark.parametrize("limit", [30, 10], ids=["Pillow would warn", "Pillow would refuse"])
def test_decompression_bomb(tmp_path, monkeypatch, limit):
    Image.fromarray(COLOURS).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match=r"a\.png: more than .* decompression bomb"):
        load(tmp_path / "a.png")


@pytest.mark.parametrize("content", [b"", b"text", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n"])
def test_no_image(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png: not an image"):
        load(tmp_path / "a.png")


def test_no_file(tmp_path):
    with pytest.raises(DataError, match=r"a\.png: no such file; name an image"):
        load(tmp_path / "a.png")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(DataError, match=r"a\.png: is a folder; name an image"):
        load(tmp_path / "a.png")


def test_colours_of_16_bits_are_refused(tmp_path):
    """Of which Pillow keeps the upper 8 without a word."""
    row = b"\0" + bytes(range(12))  # no filter; two pixels of three channels of two bytes
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(row)), (b"IEND", b"")]
    packed = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks]
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
    with Image.open(tmp_path / "deep.png") as image:
        assert (image.mode, image.size) == ("RGB", (2, 1))
    with pytest.raises(DataError, match=r"deep\.png: more than 8 bits per channel; convert it to 8 bits"):
        load(tmp_path / "deep.png")


def test_other_formats_are_not_tried(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "a.tga")
    with pytest.raises(DataError, match="not an image"):
        load(tmp_path / "a.tga")


def test_pickle_is_not_run(tmp_path, malicious):
    for ending in (*LOSSLESS.values(), "jpg", "gif", "webp"):
        (tmp_path / f"a.{ending}").write_bytes(malicious.content)
        with pytest.raises(DataError, match="not an image"):
            load(tmp_path / f"a.{ending}")
    assert not malicious.ran


def test_missing_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="pip install"):
        read(tmp_path / "a.png", FORMATS)
