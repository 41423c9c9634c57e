import dataclasses

import pytest
import torch

from bayesnorm.data.augment import Augment
from bayesnorm.data.base import CHUNK, IGNORE, Split, divide, make_data
from bayesnorm.data.stream import Purpose
from bayesnorm.errors import DataError

CLASSES = ("a", "b", "c")


def split(count, seed=0, size=(2, 4, 5), pixels=False):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, *size), generator=generator, dtype=torch.uint8)
    shape = (count, *size[1:]) if pixels else (count,)
    return Split(images, torch.randint(0, 3, shape, generator=generator))


def data(train=None, val=None, test=None):
    given = zip((train, val, test), (split(30), split(5, 1), split(6, 2)), strict=True)
    return make_data("mine", *(usual if mine is None else mine for mine, usual in given), CLASSES, Augment(shift=1))


def fails(*words, **splits):
    with pytest.raises(DataError) as caught:
        data(**splits)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [30, 2 * CHUNK + 7])
def test_standardized_training_images_have_mean_0_and_std_1(dtype, count):
    train = split(count)
    made = data(dataclasses.replace(train, images=train.images.to(dtype)))
    assert torch.allclose(made.mean.double(), train.images.double().mean((0, 2, 3)))
    assert torch.allclose(made.std.double(), train.images.double().transpose(0, 1).flatten(1).std(1, correction=0))
    seen = made.standardized(made.train.images)
    assert seen.dtype == torch.float32
    assert seen.mean((0, 2, 3)).abs().max() < 1e-5
    assert (seen.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_mean_and_std_of_a_small_spread_around_a_large_value():
    train = split(600)
    images = 1e4 + train.images.double() / 256
    made = data(dataclasses.replace(train, images=images))
    assert torch.allclose(made.std.double(), images.transpose(0, 1).flatten(1).std(1, correction=0), rtol=1e-5)


def test_properties():
    made = data()
    assert made.image_size == (2, 4, 5)
    assert not made.per_pixel
    assert made.device == torch.device("cpu")
    assert [len(made.part(name)) for name in ("train", "val", "test")] == [30, 5, 6]
    with pytest.raises(DataError, match=r"'training'.*train, val or test"):
        made.part("training")


def test_targets_per_pixel():
    train = split(10, pixels=True)
    train.targets[:, 0] = IGNORE
    made = data(train, split(3, 1, pixels=True), split(3, 2, pixels=True))
    assert made.per_pixel


def test_to_moves_everything():
    moved = data().to("meta")
    tensors = [moved.mean, moved.std]
    for part in (moved.train, moved.val, moved.test):
        tensors += [part.images, part.targets]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_digest_sees_every_change():
    here = data().digest()
    assert data().digest() == here
    for part in ("train", "val", "test"):
        for tensor in ("images", "targets"):
            made = data()
            values = getattr(made.part(part), tensor).view(-1)
            values[-1] = (values[-1] + 1) % 3
            assert made.digest() != here
    assert dataclasses.replace(data(), val=split(6, 2), test=split(5, 1)).digest() != here


def test_digest_of_standardized_data_is_the_same_for_a_view():
    train = split(30)
    apart = Split(train.images.transpose(2, 3).contiguous().transpose(2, 3), train.targets)
    assert data(apart).digest() == data(train).digest()


def test_images_of_a_wrong_shape():
    assert fails("mine, train", "(10, 2, 4)", train=Split(torch.zeros(10, 2, 4), torch.zeros(10, dtype=torch.int64)))
    assert fails("mine, val", "N > 0", val=split(0))
    assert fails("mine, test", "(2, 4, 6)", "(2, 4, 5)", test=split(3, size=(2, 4, 6)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_not_finite(value):
    images = split(5).images.float()
    images[2, 1, 3, 3] = value
    assert fails("mine, val", "NaN", val=Split(images, split(5).targets))


def test_images_of_integers():
    assert fails("int64", train=Split(split(30).images.long(), split(30).targets))


@pytest.mark.parametrize("label", [3, -1, 255])
def test_label_out_of_range(label):
    wrong = split(5)
    wrong.targets[3] = label
    assert fails("mine, val", f"label {label}", "0 to 2", val=wrong)


def test_targets_of_a_wrong_kind():
    good = split(5)
    assert fails("mine, val", "int32", val=Split(good.images, good.targets.int()))
    assert fails("mine, val", "(4,)", val=Split(good.images, good.targets[:4]))
    assert fails("mine, val", "(5, 5, 4)", val=Split(good.images, torch.zeros(5, 5, 4, dtype=torch.int64)))


def test_objects_of_another_shape():
    good = split(5, pixels=True)
    wrong = dataclasses.replace(good, objects=good.targets.mT)
    assert fails("mine, val", "objects of shape (5, 5, 4)", val=wrong)


def test_nothing_annotated():
    nothing = torch.full((5, 4, 5), IGNORE)
    assert fails("mine, val", "no target", val=Split(split(5).images, nothing))


def test_constant_channel():
    train = split(30)
    train.images[:, 1] = 9
    assert fails("mine", "constant", train=train)


def test_splits_that_disagree_about_pixels():
    assert fails("mine", val=split(5, 1, pixels=True))


def test_divide_is_a_division():
    whole = Split(torch.arange(100.0).view(100, 1, 1, 1), torch.arange(100))
    first, second = divide(whole, 0.7, seed=4)
    assert (len(first), len(second)) == (70, 30)
    for part in (first, second):
        assert torch.equal(part.images.flatten().long(), part.targets)
        assert torch.equal(part.targets.sort().values, part.targets)
    assert sorted(first.targets.tolist() + second.targets.tolist()) == list(range(100))


def test_divide_follows_from_seed_and_purpose():
    whole = split(100)
    whole = Split(whole.images, torch.arange(100))
    first = divide(whole, 0.5, 0)[0].targets
    assert torch.equal(divide(whole, 0.5, 0)[0].targets, first)
    assert not torch.equal(divide(whole, 0.5, 1)[0].targets, first)
    assert not torch.equal(divide(whole, 0.5, 0, Purpose.TEST_SPLIT)[0].targets, first)


def test_every_sample_is_equally_likely_to_be_set_apart():
    """Number of times each of 20 samples falls into the second half, within 5 sigma of a fair coin."""
    n = 1000
    whole = Split(torch.zeros(20, 1, 1, 1), torch.arange(20))
    counts = torch.cat([divide(whole, 0.5, seed)[1].targets for seed in range(n)]).bincount()
    assert (counts - n / 2).abs().max() < 5 * (n / 4) ** 0.5


@pytest.mark.parametrize(("count", "first"), [(1, 0.5), (4, 0.9), (10, 1.0), (10, 0.0)])
def test_divide_of_too_few(count, first):
    with pytest.raises(DataError, match=f"{count} samples cannot be divided"):
        divide(split(count), first, 0)
