from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayesnorm.data.augment import Augment
from bayesnorm.data.folder import folder
from bayesnorm.errors import DataError


def picture(path, value, size=(8, 6), grey=False):
    """An image of one colour with a black corner, by which its sample is recognized."""
    pixels = np.full((*size, 3), (value, value // 2, 255 - value), np.uint8)
    pixels[0, 0] = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[:, :, 0] if grey else pixels).save(path)


def fill(root, classes=("cat", "dog"), count=10, first=1, **options):
    """Values go up from class to class, in the order of the names."""
    value = first
    for name in classes:
        for index in range(count):
            picture(root / name / f"{index:02d}.png", value, **options)
            value += 1
    return root


def values(split):
    return split.images[:, 0, 3, 3].tolist()


def fails(root, *words, **options):
    with pytest.raises(DataError) as caught:
        folder(root, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_class_folders(tmp_path):
    data = folder(fill(tmp_path / "pets"))
    assert (len(data.train), len(data.val), len(data.test)) == (14, 2, 4)
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert data.image_size == (3, 8, 6)
    assert data.augment == Augment(hflip=True, shift=1)
    assert not data.augment_val
    everything = [(value, label) for split in (data.train, data.val, data.test) for value, label in pairs(split)]
    assert sorted(everything) == [(value, int(value > 10)) for value in range(1, 21)]
    assert torch.equal(data.test.images[0, :, 1, 1].long(), colour(values(data.test)[0]))


def pairs(split):
    return zip(values(split), split.targets.tolist(), strict=True)


def colour(value):
    return torch.tensor([value, value // 2, 255 - value])


def test_test_images_are_the_same_for_every_seed(tmp_path):
    first, other = (folder(fill(tmp_path, count=20), split_seed=seed) for seed in (0, 1))
    assert torch.equal(first.test.images, other.test.images)
    assert values(first.val) != values(other.val)
    assert folder(tmp_path, split_seed=1).digest() == other.digest()


@pytest.mark.parametrize("reverse", [False, True])
def test_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch, reverse):
    here = folder(fill(tmp_path)).digest()
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(listed(path), reverse=reverse)))
    assert folder(tmp_path).digest() == here


def test_given_test_set(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test", count=3, first=101)
    data = folder(tmp_path)
    assert (len(data.train), len(data.val)) == (18, 2)
    assert list(pairs(data.test)) == [(101, 0), (102, 0), (103, 0), (104, 1), (105, 1), (106, 1)]


def test_given_validation_set(tmp_path):
    fill(tmp_path / "train", count=2)
    fill(tmp_path / "test", count=1, first=101)
    fill(tmp_path / "val", count=1, first=201)
    first, other = (folder(tmp_path, split_seed=seed) for seed in (0, 1))
    assert [values(split) for split in (first.train, first.val, first.test)] == [[1, 2, 3, 4], [201, 202], [101, 102]]
    assert first.digest() == other.digest()


def test_label_of_a_class_that_is_not_tested(tmp_path):
    fill(tmp_path / "train", ("ant", "bee", "cow"))
    fill(tmp_path / "test", ("cow",), count=1)
    with pytest.warns(UserWarning, match="no image for testing of class 'ant', 'bee': what is measured there"):
        assert folder(tmp_path).test.targets.tolist() == [2]


def test_a_class_without_an_image_for_training_is_named(tmp_path):
    for name in "abcdefghijkl":
        picture(tmp_path / name / "1.png", ord(name))
    assert fails(tmp_path, "no image for training of class", "; add images, or put those for training into")


def test_what_belongs_to_no_split_is_named(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test")
    (tmp_path / "README.txt").write_text("about")
    assert len(folder(tmp_path).test)
    fill(tmp_path / "validation")
    assert fails(tmp_path, str(tmp_path / "validation"), "beside", "belong test and val, for validation")


def test_an_image_beside_the_class_folders_is_named(tmp_path):
    picture(fill(tmp_path) / "stray.png", 1)
    assert fails(tmp_path, str(tmp_path / "stray.png"), "an image beside the class folders")


def test_classes_may_be_called_train_and_test(tmp_path):
    assert folder(fill(tmp_path, ("bus", "test", "train"))).classes == ("bus", "test", "train")


def test_all_grey_is_one_channel(tmp_path):
    data = folder(fill(tmp_path, grey=True))
    assert data.image_size == (1, 8, 6)


def test_one_colour_image_makes_all_rgb(tmp_path):
    fill(tmp_path, grey=True)
    picture(tmp_path / "dog" / "colour.png", 200)
    data = folder(tmp_path)
    assert data.image_size == (3, 8, 6)
    found = torch.cat([split.images for split in (data.train, data.val, data.test)])
    flat = found[found[:, 0, 3, 3] < 200]
    assert len(flat) == 20
    assert torch.equal(flat[:, :1].expand_as(flat), flat)


def test_hidden_files_and_files_beside_the_classes_are_passed_over(tmp_path):
    here = folder(fill(tmp_path)).digest()
    (tmp_path / "README.txt").write_text("about")
    (tmp_path / ".git").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"\0")
    assert folder(str(tmp_path)).digest() == here


def test_odd_size(tmp_path):
    picture(fill(tmp_path) / "dog" / "odd.png", 200, size=(9, 6))
    fails(tmp_path, str(tmp_path / "dog" / "odd.png"), "9 x 6", "8 x 6", "--image-size")
    data = folder(tmp_path, image_size=(32, 48))
    assert data.image_size == (3, 32, 48)
    assert data.augment == Augment(hflip=True, shift=2)
    assert sorted(
        value for split in (data.train, data.val, data.test) for value in split.images[:, 0, 20, 20].tolist()
    ) == [
        *range(1, 21),
        200,
    ]


def test_odd_size_in_the_test_set(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test", size=(5, 5))
    assert fails(tmp_path, str(tmp_path / "test" / "cat" / "00.png"), "5 x 5")


@pytest.mark.parametrize("size", [(0, 5), (5, -1)])
def test_image_size_that_is_none(tmp_path, size):
    assert fails(fill(tmp_path), str(size), image_size=size)


def test_something_else_among_the_images(tmp_path):
    (fill(tmp_path) / "dog" / "labels.csv").write_text("a,b")
    assert fails(tmp_path, str(tmp_path / "dog" / "labels.csv"), "not an image")


def test_folder_in_a_class_folder(tmp_path):
    (fill(tmp_path) / "dog" / "more").mkdir()
    assert fails(tmp_path, str(tmp_path / "dog" / "more"), "directly")


def test_truncated_image(tmp_path):
    path = fill(tmp_path) / "cat" / "03.png"
    path.write_bytes(path.read_bytes()[:60])
    assert fails(tmp_path, str(path), "damaged")


def test_deep_image(tmp_path):
    Image.fromarray(np.zeros((8, 6), np.uint16)).save(fill(tmp_path) / "cat" / "deep.png")
    assert fails(tmp_path, str(tmp_path / "cat" / "deep.png"), "8 bits")


def test_decompression_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert fails(fill(tmp_path), str(tmp_path / "cat" / "00.png"), "decompression bomb")


def test_pickle_is_not_run(tmp_path, malicious):
    (fill(tmp_path / "data") / "dog" / "evil.png").write_bytes(malicious.content)
    fails(tmp_path / "data", "evil.png", "not an image")
    assert not malicious.ran


def test_layout_that_is_none(tmp_path):
    assert fails(tmp_path / "nothing", "no such folder")
    assert fails(tmp_path, str(tmp_path), "no class folders")
    picture(tmp_path / "a.png", 1)
    assert fails(tmp_path, "no class folders")
    assert fails(tmp_path / "a.png", "no such folder")
    (tmp_path / "a.png").unlink()
    fill(tmp_path, ("cat",))
    assert fails(tmp_path, "'cat'", "at least two")
    (tmp_path / "dog").mkdir()
    assert fails(tmp_path, str(tmp_path / "dog"), "empty class folder")


def test_split_layout_without_a_test_set(tmp_path):
    fill(tmp_path / "train")
    assert fails(tmp_path, str(tmp_path / "test"), "missing")
    (tmp_path / "test").mkdir()
    assert fails(tmp_path, str(tmp_path / "test"), "no class folders")


def test_unknown_class_in_the_test_set(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test", ("cat", "cow"))
    assert fails(tmp_path, str(tmp_path / "test" / "cow"), "not among those for training", "cat, dog")


def test_too_few(tmp_path):
    fails(fill(tmp_path / "four", count=4), "8 images", "at least 10")
    assert len(folder(fill(tmp_path / "five", count=5)).val) == 1


def test_images_without_any_contrast(tmp_path):
    for index in range(20):
        path = tmp_path / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4), 7).save(path)
    assert fails(tmp_path, "constant")
