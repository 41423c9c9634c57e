import sys

import pytest
import torch
import torch.nn.functional as F

import bayesnorm.data
from bayesnorm.data.augment import Augment
from bayesnorm.data.digits import digits
from bayesnorm.data.strokes import enlarged, strokes
from bayesnorm.errors import DataError


def whole(data):
    return torch.cat([data.train.images, data.val.images]), torch.cat([data.train.targets, data.val.targets])


def keys(split):
    return {bytes(image.flatten().tolist()) for image in split.images}


def test_splits_and_conventions_are_those_of_the_cells():
    data = strokes()
    assert bayesnorm.data.strokes is strokes
    assert (len(data.train), len(data.val), len(data.test)) == (42, 18, 18)
    assert data.name == "strokes"
    assert data.classes == ("background", "stroke")
    assert data.per_pixel
    assert data.image_size == (1, 32, 32)
    assert data.train.images.dtype == torch.uint8
    assert data.augment == Augment(hflip=True, vflip=True, deform=1.0, spacing=16)
    assert not data.augment_val
    assert len(keys(data.train) | keys(data.val) | keys(data.test)) == 78, "no image is there twice"


def test_the_seed_decides_on_the_split_alone():
    torch.manual_seed(0)
    first = strokes(0)
    torch.manual_seed(1)
    assert strokes(0).digest() == first.digest()
    other = strokes(1)
    assert keys(other.train) | keys(other.val) == keys(first.train) | keys(first.val)
    assert keys(other.val) != keys(first.val)
    assert torch.equal(other.test.images, first.test.images)


def test_the_images_are_the_same_on_every_machine():
    """A run folder holds the digest of its data, and a run is not resumed on other images."""
    assert strokes().digest() == "35e2db4dcbe37f81767825a8c92fbb9f71ca5aec7dca054f1abfb8208f5c7f7f"


def test_more_images_begin_with_the_same():
    few, many = strokes(count=10), strokes(count=20)
    assert keys(few.train) | keys(few.val) < keys(many.train) | keys(many.val)
    assert torch.equal(many.test.images[: len(few.test)], few.test.images)
    assert (len(many.train), len(many.val), len(many.test)) == (14, 6, 6)


def test_the_size_of_the_canvas():
    data = strokes(count=4, size=16)
    assert data.image_size == (1, 16, 16)
    assert data.train.targets.shape == (3, 16, 16)


def test_every_image_has_strokes_and_background():
    for split in (strokes().train, strokes().val, strokes().test):
        share = split.targets.double().mean((1, 2))
        assert share.min() > 0.02
        assert share.max() < 0.5
        assert set(split.targets.unique().tolist()) == {0, 1}


def test_test_images_show_the_digits_for_testing():
    """A digit that stands free is found in the mask to the pixel, and no digit for training ever is."""
    data, found = strokes(count=200), digits()
    pools = {"test": found.test.images, "rest": torch.cat([found.train.images, found.val.images])[:359]}
    best = {name: best_overlap(data.test.targets, pool) for name, pool in pools.items()}
    assert (best["test"] == 1).sum() >= 6
    assert (best["rest"] < 0.95).all()


def best_overlap(masks, pool):
    """Intersection over union of a digit's mask and a place of each mask: the largest of all digits and places."""
    masks, best = masks[:12].float().unsqueeze(1), torch.zeros(12)
    for side in range(12, 17):
        kernels = torch.stack([(enlarged(digit, side) >= 8).float() for digit in pool]).unsqueeze(1)
        both = F.conv2d(masks, kernels)
        here = F.avg_pool2d(masks, side, 1) * side**2
        best = torch.maximum(best, (both / (here + kernels.sum((1, 2, 3)).view(1, -1, 1, 1) - both)).amax((1, 2, 3)))
    return best


@pytest.mark.parametrize("side", [12, 13, 16])
def test_a_digit_is_enlarged_bilinearly(side):
    """At (i + 1/2) 8/side - 1/2 of the digit, from the neighbours above and below, left and right; the edge goes on."""
    digit = digits().train.images[0]
    at = ((torch.arange(side, dtype=torch.float64) + 0.5) * 8 / side - 0.5).clamp(min=0)
    low = at.long()
    high, part = (low + 1).clamp(max=7), at - low
    rows = torch.lerp(digit[0].double()[low], digit[0].double()[high], part[:, None])
    expected = torch.lerp(rows[:, low], rows[:, high], part)
    torch.testing.assert_close(enlarged(digit, side), expected, rtol=0, atol=1e-6)


def test_no_threshold_solves_it():
    images, targets = whole(strokes())
    right = torch.stack([(images[:, 0] >= level).long() == targets for level in range(256)]).double().mean((2, 3))
    background = float((targets == 0).double().mean())
    one_for_all, one_for_each = float(right.mean(1).max()), float(right.amax(0).mean())
    assert 0.8 < background < one_for_all < 0.95
    assert one_for_all + 0.01 < one_for_each < 0.97


def test_the_light_is_uneven():
    """Mean of the background in the four quarters of an image, the brightest by the darkest."""
    images, targets = whole(strokes())
    empty = (targets == 0).double().unsqueeze(1)
    quarters = F.avg_pool2d(images * empty, 16) / F.avg_pool2d(empty, 16)
    ratio = quarters.amax((1, 2, 3)) / quarters.amin((1, 2, 3))
    assert ratio.median() > 1.3
    assert (ratio > 1.1).double().mean() > 0.8


def test_noise_of_the_pixels():
    """Second differences of pixels far from ink: light is piecewise linear, so that 6 (8^2 0.995 + 1/12) is left."""
    images, targets = whole(strokes())
    clear = F.max_pool2d(targets.float(), 13, 1, 6)[:, :, 1:-1] == 0
    grey = images[:, 0].double()
    second = (grey[:, :, 2:] - 2 * grey[:, :, 1:-1] + grey[:, :, :-2])[clear]
    assert len(second) > 5000
    assert float(second.square().mean()) == pytest.approx(6 * (64 * 0.995 + 1 / 12), rel=0.05)


def test_strokes_are_brighter_than_what_surrounds_them():
    images, targets = whole(strokes())
    for image, mask in zip(images[:, 0].double(), targets.bool(), strict=True):
        near = (F.max_pool2d(mask[None].float(), 9, 1, 4)[0] > 0) & ~mask
        assert image[mask].mean() > image[near].mean() + 5


@pytest.mark.parametrize(("options", "words"), [({"count": 1}, "count=1"), ({"size": 15}, "size=15: at least 16")])
def test_too_little_is_refused(options, words):
    with pytest.raises(DataError, match=words) as caught:
        strokes(**options)
    assert "\n" not in str(caught.value)


def test_missing_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="pip install"):
        strokes()
