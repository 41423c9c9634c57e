import dataclasses
import math
from itertools import islice

import pytest
import torch
from scipy import stats
from small_data import made_up

from bayesnorm.data import passes, stream
from bayesnorm.data.augment import NOTHING, Augment
from bayesnorm.data.base import Data, Split
from bayesnorm.data.passes import images_of, input_statistics, resampled, training_images
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


# With replacement.


def indices(data, batch, seed, steps):
    """Which images were drawn: each of them is its own number, and neither standardized nor augmented."""
    return torch.stack([images[:, 0, 0, 0].round().long() for images in islice(resampled(data, batch, seed), steps)])


def numbered(count):
    images = torch.arange(count).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).float()
    some = Split(images, torch.zeros(count, dtype=torch.int64))
    return Data("numbers", some, some, some, ("a",), torch.zeros(1), torch.ones(1))


def even(numbers, count):
    """Whether a chi-square test takes them for a uniform sample of ``count`` numbers."""
    return stats.chisquare(numbers.flatten().bincount(minlength=count).numpy()).pvalue > 1e-3


def test_every_image_is_drawn_alike():
    drawn = indices(numbered(40), 300, 0, 200)
    assert even(drawn, 40)
    more = torch.arange(20).repeat_interleave(150)
    assert not even(torch.cat([drawn.flatten(), more]), 40), "10 % more of half of them would show"


def test_draws_are_independent_within_a_batch_and_between_batches():
    drawn = indices(numbered(20), 100, 1, 400)
    assert even(20 * drawn[:, ::2] + drawn[:, 1::2], 400)
    assert even(20 * drawn[::2] + drawn[1::2], 400)


def test_what_is_drawn_does_not_tell_how_it_is_augmented():
    """The corners of image i are i, i + 0.1, i + 0.2 and i + 0.3: which of them comes first tells both mirrors."""
    plain = numbered(10)
    corners = plain.train.images + torch.tensor([[0.0, 0.1], [0.2, 0.3]])
    mirrored = dataclasses.replace(
        plain, train=Split(corners, plain.train.targets), augment=Augment(hflip=True, vflip=True)
    )
    first = torch.cat([images[:, 0, 0, 0] for images in islice(resampled(mirrored, 300), 100)])
    image, corner = first.floor().long(), (10 * (first % 1)).round().long()
    assert even(4 * image + corner, 40)


def test_an_image_can_come_twice_in_a_batch():
    """No image twice in a batch of 100 of 1294: ``prod (1 - i / 1294)`` = 2 %."""
    once = math.prod(1 - i / 1294 for i in range(100))
    repeated = sum(len(batch.unique()) < 100 for batch in indices(numbered(1294), 100, 0, 200))
    assert abs(repeated - 200 * (1 - once)) < 5 * math.sqrt(200 * once * (1 - once))
    assert once == pytest.approx(0.02, abs=0.002)


def test_draws_follow_from_seed_and_step():
    data = numbered(40)
    first = indices(data, 16, 3, 5)
    assert torch.equal(indices(data, 16, 3, 5), first)
    assert torch.equal(indices(data, 8, 3, 5), first[:, :8]), "the first of a larger batch"
    assert not torch.equal(indices(data, 16, 4, 5), first)
    assert len({tuple(batch.tolist()) for batch in first}) == 5


def test_what_is_drawn_is_standardized_and_augmented_anew():
    data = made_up(augment=MOVES)
    plain = dataclasses.replace(data, augment=NOTHING)
    step = 2
    images, chosen = (next(islice(resampled(which, 200, 1), step, None)) for which in (data, plain))
    known = data.standardized(data.train.images)
    assert all(any(torch.equal(image, other) for other in known) for image in chosen)
    rows = stream.rows(1, Purpose.RESAMPLING, step, torch.arange(200))
    assert torch.equal(images, data.augment(chosen, rows)[0])
    same = [i for i in range(200) if torch.equal(chosen[i], chosen[0])]
    assert len(same) > 1
    assert len({images[i].numpy().tobytes() for i in same}) > 1, "an image that comes again is moved differently"
