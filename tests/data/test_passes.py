import pytest
import torch
from small_data import made_up

from bayesnorm.data import passes, stream
from bayesnorm.data.augment import Augment
from bayesnorm.data.passes import images_of, input_statistics, training_images
from bayesnorm.data.stream import Purpose
from bayesnorm.errors import DataError

MOVES = Augment(shift=2, hflip=True)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Seven images of 8 x 8 at a time, so that a split takes several pieces."""
    monkeypatch.setattr(passes, "PIXELS", 7 * 64 + 10)


def collected(data, part, **options):
    pieces = list(images_of(data, part, **options))
    assert max((len(images) for images, _ in pieces), default=0) <= 7
    return torch.cat([images for images, _ in pieces]), torch.cat([targets for _, targets in pieces])


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_a_pass_is_the_split_in_its_order(part, pixels):
    data = made_up(pixels=pixels, augment=MOVES)
    images, targets = collected(data, part)
    split = data.part(part)
    assert torch.equal(images, data.standardized(split.images))
    assert torch.equal(targets, split.targets)


@pytest.mark.parametrize("limit", [1, 7, 10, 20, 500])
def test_a_limit_takes_the_first(limit):
    data = made_up()
    images, targets = collected(data, "val", limit=limit)
    assert len(images) == min(limit, 20)
    assert torch.equal(images, data.standardized(data.val.images[:limit]))
    assert torch.equal(targets, data.val.targets[:limit])


@pytest.mark.parametrize("augment_val", [False, True])
@pytest.mark.parametrize("limit", [None, 11])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_processes_together_see_what_one_sees(world, limit, augment_val):
    data = made_up(augment=MOVES, augment_val=augment_val)
    whole = collected(data, "val", seed=4, limit=limit)
    found = [collected(data, "val", seed=4, limit=limit, rank=rank, world=world) for rank in range(world)]
    for index in (0, 1):
        assert torch.equal(torch.cat([part[index] for part in found]), whole[index])


def test_a_process_without_samples_sees_nothing():
    assert list(images_of(made_up(), "val", limit=2, rank=0, world=3)) == []


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
@pytest.mark.parametrize(
    ("part", "purpose"), [("train", Purpose.AUGMENT_TRAINING_EVALUATION), ("val", Purpose.AUGMENT_VALIDATION)]
)
def test_training_and_where_asked_validation_are_augmented_alike_every_time(pixels, part, purpose):
    data = made_up(pixels=pixels, augment=MOVES, augment_val=True)
    split = data.part(part)
    images, targets = collected(data, part, seed=1)
    rows = stream.rows(1, purpose, 0, torch.arange(len(split)))
    expected, masks = data.augment(data.standardized(split.images), rows, split.targets if pixels else None)
    assert torch.equal(images, expected)
    assert torch.equal(targets, masks if pixels else split.targets)
    assert not torch.equal(images, data.standardized(split.images))
    assert torch.equal(collected(data, part, seed=1)[0], images)
    assert not torch.equal(collected(data, part, seed=2)[0], images)
    assert torch.equal(collected(data, "test")[0], data.standardized(data.test.images))


def test_an_unknown_split_is_refused():
    with pytest.raises(DataError, match="'all': choose train, val or test"):
        list(images_of(made_up(), "all"))


def test_training_images_are_all_of_them_augmented_in_a_random_order():
    data = made_up(augment=MOVES)
    found = torch.cat(list(training_images(data, seed=3)))
    order = stream.permutation(3, Purpose.INITIALIZATION, 0, 48)
    rows = stream.rows(3, Purpose.INPUT_STATISTICS, 0, order)
    assert torch.equal(found, data.augment(data.standardized(data.train.images[order]), rows)[0])
    assert torch.equal(torch.cat(list(training_images(data, seed=3, limit=9))), found[:9])
    assert not torch.equal(torch.cat(list(training_images(data, seed=4, limit=9))), found[:9])


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_input_statistics_are_those_of_the_augmented_images(pixels):
    data = made_up(size=(2, 8, 8), pixels=pixels, augment=MOVES)
    seen = torch.cat(list(training_images(data, seed=5))).double()
    mean, var = input_statistics(data, seed=5)
    assert mean.dtype == var.dtype == torch.float32
    torch.testing.assert_close(mean.double(), seen.mean((0, 2, 3)), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(var.double(), seen.var((0, 2, 3), correction=0), rtol=1e-5, atol=0)
    assert (var < 0.95).all(), "shifts bring in zeros"


def test_input_statistics_without_augmentation_are_0_and_1():
    mean, var = input_statistics(made_up(size=(3, 8, 8)))
    assert mean.abs().max() < 1e-5
    assert (var - 1).abs().max() < 1e-5
