import dataclasses
import hashlib
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from bayesnorm.data.augment import Augment
from bayesnorm.data.cells import cells
from bayesnorm.data.foreign import in_units_of
from bayesnorm.errors import DataError

SIZE = (12, 10)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def frame(root, sequence, number, size=SIZE):
    """A frame whose first pixel tells its number, the second its sequence."""
    pixels = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
    pixels[0, :2] = number, int(sequence)
    save(root / sequence / f"t{number:03d}.tif", pixels, compression="tiff_lzw")


def mask(root, sequence, number, kind="GT", cell=300, size=SIZE):
    """Two cells; the row of the first tells the number of the frame, its column the kind."""
    pixels = np.zeros(size, np.uint16)
    pixels[number % size[0], 0 if kind == "GT" else 1] = cell
    pixels[3:6, 4:8] = 2
    save(root / f"{sequence}_{kind}" / "SEG" / f"man_seg{number:03d}.tif", pixels, compression="tiff_lzw")


@pytest.fixture
def root(tmp_path):
    """Sequence 01 with frames 0 to 9, masks of the even ones by experts and of all by a program; 02 likewise."""
    for sequence in ("01", "02"):
        for number in range(10):
            frame(tmp_path / "set", sequence, number)
            mask(tmp_path / "set", sequence, number, "ST")
            if number % 2 == 0:
                mask(tmp_path / "set", sequence, number, "GT")
    return tmp_path / "set"


def frames(split):
    """(sequence, number, kind of its mask) of every sample, as the pixels tell."""
    told = []
    for image, target in zip(split.images, split.targets, strict=True):
        number = int(image[0, 0, 0])
        kinds = [kind for column, kind in enumerate(("GT", "ST")) if target[number % SIZE[0], column]]
        told.append((f"{int(image[0, 0, 1]):02d}", number, *kinds))
    return told


def fails(root, *words, **options):
    with pytest.raises(DataError) as caught:
        cells(root, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_expert_masks(root):
    data = cells(root)
    assert (len(data.train), len(data.val)) == (7, 3)
    assert sorted(frames(data.train) + frames(data.val)) == [
        (sequence, number, "GT") for sequence in ("01", "02") for number in range(0, 10, 2)
    ]
    assert data.classes == ("background", "cell")
    assert data.per_pixel
    assert data.image_size == (1, *SIZE)
    assert data.train.images.dtype == torch.uint8
    assert data.augment == Augment(hflip=True, vflip=True, deform=8.0, spacing=64)
    assert not data.augment_val
    assert data.test is data.val


def test_target_is_one_wherever_there_is_a_cell(root):
    data = cells(root)
    expected = torch.zeros(SIZE, dtype=torch.int64)
    expected[3:6, 4:8] = 1
    expected[int(data.val.images[0, 0, 0, 0]), 0] = 1
    assert torch.equal(data.val.targets[0], expected)


def test_split_follows_from_the_seed(root):
    first, same, other = (cells(root, split_seed=seed) for seed in (0, 0, 1))
    assert first.digest() == same.digest() != other.digest()


def blocks(tensor, reduce):
    """Pixels of each block, one image after the other, row by row."""
    for image in tensor:
        for y in range(0, image.shape[0], reduce):
            for x in range(0, image.shape[1], reduce):
                yield image[y : y + reduce, x : x + reduce].flatten().tolist()


def number_of(block):
    """0 unless cells have more than half, else the smallest of the cells that come most often."""
    inside = [number for number in block if number]
    if 2 * len(inside) <= len(block):
        return 0
    return min(set(inside), key=lambda number: (-inside.count(number), number))


@pytest.mark.parametrize("split", ["random", "01-02"])
def test_reduced_frames(root, split):
    """Blocks of 2 x 2: random pixels average to every fraction, and a cell of odd height leaves blocks half covered."""
    whole, half = (cells(root, split=split, reduce=reduce) for reduce in (1, 2))
    assert half.image_size == (1, SIZE[0] // 2, SIZE[1] // 2)
    for ours, theirs in ((half.train, whole.train), (half.val, whole.val)):
        assert ours.images.flatten().tolist() == [sum(block) / 4 for block in blocks(theirs.images[:, 0], 2)]
        assert ours.objects.flatten().tolist() == [number_of(block) for block in blocks(theirs.objects, 2)]
        assert torch.equal(ours.targets, (ours.objects > 0).long())
        assert len(ours.objects.unique()) == 2
    assert half.augment == Augment(hflip=True, vflip=True, deform=4.0, spacing=32)
    assert half.test is half.val


@pytest.mark.parametrize("reduce", [2, 3, 4])
def test_a_reduced_mask_has_the_cell_of_most_pixels(tmp_path, reduce):
    """Numbers at random, three of them in most blocks and often equally many, background in two of five pixels."""
    for number in range(4):
        frame(tmp_path, "01", number, (24, 36))
        pixels = np.random.default_rng(number).choice([0, 0, 100, 200, 300], (24, 36)).astype(np.uint16)
        save(tmp_path / "01_GT" / "SEG" / f"man_seg{number:03d}.tif", pixels)
    whole, less = (cells(tmp_path, reduce=by) for by in (1, reduce))
    expected = [number_of(block) for block in blocks(whole.train.objects, reduce)]
    assert less.train.objects.flatten().tolist() == expected
    assert set(expected) == {0, 100, 200, 300}
    covered = [2 * sum(map(bool, block)) > len(block) for block in blocks(whole.train.objects, reduce)]
    assert less.train.targets.flatten().tolist() == covered, "where cells meet there is no background"


@pytest.mark.parametrize("reduce", [0, -2, 2.0, "2", True])
def test_what_frames_cannot_be_reduced_by(root, reduce):
    assert fails(root, f"reduce={reduce!r}", "whole number of at least 1", reduce=reduce)


def test_frames_that_cannot_be_reduced(root):
    assert fails(root, "01/t000.tif", "12 x 10", "reduced by 4", "divisor of both", reduce=4)


def test_a_mask_with_a_negative_number(root):
    save(root / "01_GT" / "SEG" / "man_seg002.tif", np.full(SIZE, -1, np.int32))
    assert fails(root, "man_seg002.tif", "the number -1", "0 is background")


def test_automatic_masks(root):
    data = cells(root, masks="auto")
    assert sorted(frames(data.train) + frames(data.val)) == [
        (sequence, number, "ST") for sequence in ("01", "02") for number in range(10)
    ]


def test_expert_masks_win(root):
    data = cells(str(root), masks="expert+auto")
    assert sorted(frames(data.train) + frames(data.val)) == [
        (sequence, number, "ST" if number % 2 else "GT") for sequence in ("01", "02") for number in range(10)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_automatic_masks_are_added_to_training_alone(root, seed):
    experts, both = (cells(root, seed, masks) for masks in ("expert", "expert+auto"))
    assert torch.equal(both.val.images, experts.val.images)
    assert torch.equal(both.val.objects, experts.val.objects)
    added = [(sequence, number, "ST") for sequence in ("01", "02") for number in range(1, 10, 2)]
    assert frames(both.train) == [*frames(experts.train), *added]
    assert not {told[:2] for told in frames(both.train)} & {told[:2] for told in frames(both.val)}
    left_out = cells(root, seed, "expert+auto", exclude=[("01", 4)])
    assert ("01", 4, "ST") in frames(left_out.train)


def test_automatic_masks_with_a_sequence_for_validation(root):
    data = cells(root, masks="expert+auto", split="01-02")
    assert frames(data.train) == [("01", number, "ST" if number % 2 else "GT") for number in range(10)]
    assert frames(data.val) == [("02", number, "GT") for number in range(0, 10, 2)]


def test_one_sequence_for_training_and_the_other_for_validation(root):
    data = cells(root, split="01-02")
    assert frames(data.train) == [("01", number, "GT") for number in range(0, 10, 2)]
    assert frames(data.val) == [("02", number, "GT") for number in range(0, 10, 2)]
    assert data.digest() == cells(root, split_seed=5, split="01-02").digest()


def test_exclude(root):
    left_out = cells(root, split="01-02", exclude=[("01", 4), ("02", 0)])
    assert ("01", 4, "GT") not in frames(left_out.train)
    assert (len(left_out.train), len(left_out.val)) == (4, 4)
    replaced = cells(root, split="01-02", masks="expert+auto", exclude=[("01", 4)])
    assert ("01", 4, "ST") in frames(replaced.train)
    assert len(replaced.train) == 10
    assert len(cells(root, split="01-02", masks="auto", exclude=[("01", 4)]).train) == 10


def test_frame_that_is_mostly_unannotated_is_excluded_unless_asked_for(root, monkeypatch):
    frame(root, "01", 67)
    mask(root, "01", 67)
    assert 67 in [number for _, number, _ in frames(cells(root, split="01-02").train)], "of another data set"
    known = hashlib.sha256((root / "01_GT" / "SEG" / "man_seg067.tif").read_bytes()).hexdigest()
    monkeypatch.setattr(sys.modules["bayesnorm.data.cells"], "MOSTLY_UNANNOTATED", {known})
    data = cells(root, split="01-02")
    assert 67 not in [number for _, number, _ in frames(data.train)]
    assert ("01", 67, "GT") in frames(cells(root, split="01-02", exclude=()).train)


def test_small_and_black_and_white_masks(root):
    path = root / "01_GT" / "SEG" / "man_seg002.tif"
    here = cells(root).digest()
    found = np.array(Image.open(path))
    for made in ((found > 0).astype(np.uint8), found > 0, found.astype(np.int32)):
        save(path, made)
        assert cells(root).digest() == here


def test_other_endings_and_hidden_files(root):
    here = cells(root).digest()
    (root / "01" / "Thumbs.db").write_bytes(b"x")
    (root / "01" / "._t002.tif").write_bytes(b"x")
    (root / "01" / "t002.tif").rename(root / "01" / "t002.TIFF")
    (root / "01_GT" / "TRA").mkdir()
    assert cells(root).digest() == here


@pytest.mark.parametrize(
    "place", ["01/t005.tif", "01/t002.tif", "01_GT/SEG/man_seg002.tif", "01_ST/SEG/man_seg003.tif"]
)
@pytest.mark.parametrize("ending", [".png", ".PNG", ".tif.gz"])
def test_file_that_is_named_like_a_frame_or_mask_but_is_no_tiff(root, place, ending):
    """Passed over in silence, it would be missing."""
    path = (root / place).with_suffix(ending)
    (root / place).rename(path)
    fails(root, str(path), "not a TIFF file", "002.tif", masks="expert+auto")
    path.rename((root / place).with_name("notes.txt"))
    (root / place).with_name("notes.txt").rename(root / place)
    assert len(cells(root, masks="expert+auto").train) == 17


def test_no_such_choice(root):
    assert fails(root, "'both'", "expert+auto", masks="both")
    assert fails(root, "'02-01'", "01-02", split="02-01")


def test_no_data_set(root, tmp_path):
    assert fails(tmp_path / "nothing", "no such folder")
    assert fails(tmp_path, "no sequence folders")
    assert fails(root / "01" / "t000.tif", "no such folder")


def test_missing_mask_folder(root):
    (root / "02_GT").rename(root / "elsewhere")
    fails(root, str(root / "02_GT" / "SEG"), "no such folder of masks")
    fails(root, "0 annotated frames by an expert", "for validation", masks="expert+auto", split="01-02")
    data = cells(root, masks="expert+auto")
    assert {sequence for sequence, *_ in frames(data.val)} == {"01"}
    assert len(data.train) + len(data.val) == 20


@pytest.mark.parametrize("masks", ["auto", "expert+auto"])
def test_missing_automatic_mask(root, masks):
    """Experts annotate some frames, programs all of them."""
    (root / "01_ST" / "SEG" / "man_seg003.tif").unlink()
    fails(root, str(root / "01_ST" / "SEG" / "man_seg003.tif"), str(root / "01" / "t003.tif"), masks=masks)
    assert len(cells(root).train) == 7
    (root / "01_ST" / "SEG" / "man_seg004.tif").unlink()
    (root / "01" / "t003.tif").unlink()
    assert len(cells(root, masks="expert+auto", split="01-02").train) == 9, "an expert's mask is one"


def test_objects_are_the_numbers_of_the_mask(root):
    data = cells(root, split="01-02")
    assert data.val.objects.shape == data.val.targets.shape
    assert torch.equal((data.val.objects > 0).long(), data.val.targets)
    assert set(data.val.objects.unique().tolist()) == {0, 2, 300}
    assert not data.has_test


def test_empty_mask_folder(root):
    for path in (root / "02_GT" / "SEG").iterdir():
        path.unlink()
    assert fails(root, str(root / "02_GT" / "SEG"), "no masks")


def test_empty_sequence(root):
    (root / "03").mkdir()
    assert fails(root, str(root / "03"), "no frames")


def test_missing_sequence(root):
    (root / "02").rename(root / "03")
    (root / "02_GT").rename(root / "03_GT")
    assert fails(root, str(root / "02"), "no such sequence", split="01-02")


def test_mask_without_frame(root):
    mask(root, "01", 77)
    assert fails(root, "man_seg077.tif", "without its frame", "t077.tif")


def test_sizes_that_differ(root):
    mask(root, "01", 4, size=(12, 11))
    assert fails(root, "man_seg004.tif", "12 x 11", "12 x 10")
    mask(root, "01", 4)
    frame(root, "02", 2, size=(6, 10))
    assert fails(root, "t002.tif", "6 x 10", "12 x 10")


@pytest.mark.parametrize("pixels", [np.ones(SIZE, np.uint16), np.ones((*SIZE, 3), np.uint8), np.ones(SIZE, np.float32)])
def test_frame_that_is_not_8_bit_grey(root, pixels):
    save(root / "01" / "t002.tif", pixels)
    assert fails(root, "t002.tif", "8-bit greyscale")


@pytest.mark.parametrize("pixels", [np.ones((*SIZE, 3), np.uint8), np.ones(SIZE, np.float32)])
def test_mask_without_numbers(root, pixels):
    save(root / "01_GT" / "SEG" / "man_seg002.tif", pixels)
    assert fails(root, "man_seg002.tif", "number of a cell")


@pytest.mark.parametrize("place", ["01/t002.tif", "01_GT/SEG/man_seg002.tif"])
def test_file_that_is_no_tiff(root, place):
    save(root / "a.png", np.ones(SIZE, np.uint8))
    (root / place).write_bytes((root / "a.png").read_bytes())
    assert fails(root, str(root / place), "not an image (TIFF)")


@pytest.mark.parametrize("place", ["01/t002.tif", "01_GT/SEG/man_seg002.tif"])
def test_truncated_file(root, place):
    whole = (root / place).read_bytes()
    (root / place).write_bytes(whole[: len(whole) // 2])
    assert fails(root, str(root / place))


@pytest.mark.parametrize("place", ["01/t002.tif", "01_GT/SEG/man_seg002.tif"])
def test_pickle_is_not_run(root, place, malicious):
    (root / place).write_bytes(malicious.content)
    fails(root, str(root / place), "not an image")
    assert not malicious.ran


def test_names_that_are_not_understood(root):
    save(root / "01_GT" / "SEG" / "man_seg_000_001.tif", np.ones(SIZE, np.uint16))
    assert fails(root, "man_seg_000_001.tif", "man_seg002.tif")
    (root / "01_GT" / "SEG" / "man_seg_000_001.tif").unlink()
    save(root / "01" / "t0002.tif", np.ones(SIZE, np.uint8))
    assert fails(root, "t002.tif", "t0002.tif")


def test_too_few(tmp_path):
    frame(tmp_path, "01", 0)
    mask(tmp_path, "01", 0)
    fails(tmp_path, "1 annotated frame;", "at least 2")
    frame(tmp_path, "01", 1)
    mask(tmp_path, "01", 1)
    assert [len(split) for split in (cells(tmp_path).train, cells(tmp_path).val)] == [1, 1]


@pytest.mark.parametrize("options", [{}, {"masks": "expert+auto"}, {"split": "01-02"}, {"reduce": 2}])
def test_masks_that_tell_no_cells_apart_have_no_objects(root, options):
    """255 wherever there is a cell: whole foregrounds would be measured as one cell."""
    for path in root.glob("*/SEG/*.tif"):
        pixels = np.array(Image.open(path))
        save(path, np.where(pixels > 0, 255, 0).astype(np.uint8))
    data = cells(root, **options)
    assert all(part.objects is None for part in (data.train, data.val))
    assert data.objects_digest() is None
    assert data.val.targets.sum() > 0


def test_a_single_mask_with_numbers_tells_cells_apart(root):
    one, *others = sorted(root.glob("0?_GT/SEG/*.tif"))
    for path in others:
        save(path, np.eye(*SIZE, dtype=np.uint8))
    assert cells(root).val.objects is not None
    save(one, np.eye(*SIZE, dtype=np.uint8))
    assert cells(root).val.objects is None


def test_a_mask_in_colours_has_the_numbers_behind_them(root):
    """As ImageJ stores labels with a table of colours."""
    path = root / "02_GT" / "SEG" / "man_seg002.tif"
    numbers = np.array(Image.open(path)).clip(0, 200).astype(np.uint8)
    image = Image.fromarray(numbers)
    image.putpalette([int(v) for v in np.random.default_rng(0).integers(0, 256, 768)])
    assert image.mode == "P"
    image.save(path)
    found = cells(root, split="01-02").val
    place = frames(found).index(("02", 2, "GT"))
    assert torch.equal(found.objects[place], torch.from_numpy(numbers).int())


def test_frame_of_numbers_with_a_sign(root):
    """Pillow reads -1 as 255."""
    save(root / "01" / "t002.tif", np.full(SIZE, 255, np.uint8), tiffinfo={339: 2})
    assert fails(root, "t002.tif", "values have signs")


@pytest.mark.parametrize("split", ["random", "01-02"])
def test_the_file_of_another_size_is_named_in_every_split(root, split):
    for number in range(10):
        frame(root, "02", number, size=(12, 12))
        mask(root, "02", number, "GT", size=(12, 12))
    assert fails(root, str(root / "02" / "t000.tif"), "12 x 12", "12 x 10", split=split)


def test_black_and_white_stay_what_they_are_where_pixels_are_averaged(root):
    whole, reduced = cells(root), cells(root, reduce=2)
    assert reduced.train.images.amax() < 255
    assert reduced.span == whole.span == (0.0, 255.0)
    asked = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(in_units_of(reduced, asked, 0.0, 255.0), asked.float())
    assert torch.equal(in_units_of(whole, asked, 0.0, 255.0), asked)


def test_objects_have_a_digest_of_their_own(root):
    data = cells(root)
    other = dataclasses.replace(data, val=dataclasses.replace(data.val, objects=(data.val.objects > 0).int()))
    assert other.digest() == data.digest()
    assert other.objects_digest() != data.objects_digest()


@pytest.mark.parametrize(("options", "unused"), [({}, 10), ({"masks": "expert+auto"}, 0), ({"split": "01-02"}, 10)])
def test_frames_that_nobody_annotated_are_counted(root, options, unused):
    data = cells(root, **options)
    assert data.unused == unused
    assert data.unused + len(data.train) + len(data.val) == 20


def test_frames_of_a_sequence_that_is_not_asked_for_are_not_counted(root):
    frame(root, "03", 0)
    mask(root, "03", 0)
    assert cells(root, split="01-02").unused == 10
