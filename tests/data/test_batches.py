import pytest
import torch
from small_data import CLASSES, made_up

from bayesnorm.data import stream
from bayesnorm.data.augment import Augment
from bayesnorm.data.base import Split, make_data
from bayesnorm.data.batches import Batches, augmented
from bayesnorm.data.stream import Purpose
from bayesnorm.errors import DataError

COUNT = 23


def numbered():
    """Images whose value is their index, so that a batch tells which samples it holds."""
    values = torch.arange(COUNT, dtype=torch.float32)
    split = Split(values.view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous(), torch.arange(COUNT) % 3)
    return make_data("numbered", split, split, split, CLASSES)


def held(data, batch):
    return (batch.images[:, 0, 0, 0] * data.std + data.mean).round().long().tolist()


def parts(data, world, *place, **options):
    return [Batches(data, **options, rank=rank, world=world)(*place) for rank in range(world)]


def joined(found):
    """Batches of all processes as one: all that count first, then all that only take part in the normalization."""
    counts = [len(part.targets) for part in found]
    cut = [
        (getattr(part, name)[:count], getattr(part, name)[count:])
        for name in ("images", "samples")
        for part, count in zip(found, counts, strict=True)
    ]
    half = len(found)
    images = torch.cat([first for first, _ in cut[:half]] + [second for _, second in cut[:half]])
    samples = torch.cat([first for first, _ in cut[half:]] + [second for _, second in cut[half:]])
    return images, torch.cat([part.targets for part in found]), samples


@pytest.mark.parametrize("batch", [1, 4, 5, COUNT])
def test_an_epoch_holds_every_sample_once(batch):
    data = numbered()
    batches = Batches(data, batch, seed=3)
    found = [batches(2, index) for index in range(len(batches))]
    assert sorted(sample for one in found for sample in held(data, one)) == list(range(COUNT))
    assert [one.whole for one in found[:-1]] == [batch] * (len(found) - 1)
    assert found[-1].whole == (COUNT % batch or batch)
    for one in found:
        assert one.targets.tolist() == [sample % 3 for sample in held(data, one)]
        assert one.samples.tolist() == list(range(one.whole))


def test_the_order_depends_on_seed_and_epoch_and_nothing_else():
    data = numbered()

    def order(seed, epoch, batch=6):
        batches = Batches(data, batch, seed)
        return [sample for index in range(len(batches)) for sample in held(data, batches(epoch, index))]

    assert order(0, 0) == order(0, 0) == order(0, 0, batch=5)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}) == 6
    batches = Batches(data, 6, 0)
    late = held(data, batches(7, 2))
    batches(1, 0)
    assert held(data, batches(7, 2)) == late, "coming back to an epoch"


@pytest.mark.parametrize("index", [0, 1, 4])
def test_others_are_distinct_and_not_in_the_batch(index):
    data = numbered()
    batches = Batches(data, 5, seed=1, norm_batch=16)
    seen = []
    for epoch in (0, 1):
        one = batches(epoch, index)
        chosen = held(data, one)
        assert one.whole == len(one.targets) == (3 if index == 4 else 5)
        assert len(chosen) == len(set(chosen)) == one.whole + 11
        assert chosen[: one.whole] == held(data, Batches(data, 5, seed=1)(epoch, index))
        assert one.samples.tolist() == list(range(len(chosen)))
        seen.append(tuple(chosen[one.whole :]))
    assert seen[0] != seen[1]


@pytest.mark.parametrize("index", [0, 1, 4])
def test_others_follow_from_seed_epoch_and_index(index):
    batches = Batches(numbered(), 5, seed=1, norm_batch=16)
    order = stream.permutation(1, Purpose.ORDER, 2, COUNT).tolist()
    rest = order[5 * index + 5 :] + order[: 5 * index]
    shuffle = stream.permutation(1, Purpose.OTHERS, 2 * len(batches) + index, len(rest)).tolist()
    assert batches.normalizing(2, index).tolist() == [rest[i] for i in shuffle[:11]]


def test_all_samples_can_be_in_the_normalization():
    data = numbered()
    chosen = held(data, Batches(data, 5, seed=0, norm_batch=COUNT)(0, 0))
    assert sorted(chosen) == list(range(COUNT))


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
@pytest.mark.parametrize("norm_batch", [None, 7, 20])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("index", [0, 3])
def test_the_parts_of_all_processes_are_the_batch_of_one(world, norm_batch, pixels, index):
    augment = Augment(shift=2, hflip=True, vflip=True, deform=1.0, spacing=4)
    data = made_up(24, size=(2, 8, 8), pixels=pixels, augment=augment)
    options = {"batch": 7, "seed": 5, "norm_batch": norm_batch}
    whole = Batches(data, **options)(1, index)
    found = parts(data, world, 1, index, **options)
    images, targets, samples = joined(found)
    assert torch.equal(images, whole.images)
    assert torch.equal(targets, whole.targets)
    assert torch.equal(samples, whole.samples)
    assert {part.whole for part in found} == {whole.whole} == {3 if index == 3 else 7}
    sizes = [len(part.targets) for part in found]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_augmentation_is_that_of_the_number_in_the_step():
    data = made_up(24, augment=Augment(shift=2, hflip=True))
    batches = Batches(data, 6, seed=2)
    one = batches(3, 1)
    chosen = stream.permutation(2, Purpose.ORDER, 3, 24)[6:12]
    rows = stream.rows(2, Purpose.AUGMENT, 3 * len(batches) + 1, torch.arange(6))
    expected, _ = data.augment(data.standardized(data.train.images[chosen]), rows)
    assert torch.equal(one.images, expected)
    assert not torch.equal(expected, data.standardized(data.train.images[chosen]))
    images = torch.cat([augmented(data, data.train[chosen[i : i + 1]], rows[i : i + 1])[0] for i in range(6)])
    assert torch.equal(images, expected)


def test_the_same_sample_is_augmented_anew_in_every_epoch():
    data = made_up(8, augment=Augment(shift=3))
    batches = Batches(data, 8, seed=0)
    seen = []
    for epoch in range(4):
        place = int((stream.permutation(0, Purpose.ORDER, epoch, 8) == 5).nonzero())
        seen.append(batches(epoch, 0).images[place])
    assert sum(not torch.equal(seen[0], other) for other in seen[1:]) >= 2


def test_masks_move_with_their_images():
    image = torch.rand(9, 1, 6, 6) > 0.5
    split = Split(image.float(), image[:, 0].long())
    data = make_data("masks", split, split, split, ("dark", "bright"), Augment(hflip=True, vflip=True))
    for index in range(3):
        one = Batches(data, 3, seed=0)(0, index)
        assert torch.equal(one.images[:, 0] > 0, one.targets == 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, ("batch=0", "1 to 23", "numbered")),
        ({"batch": 24}, ("batch=24", "1 to 23")),
        ({"batch": 5, "norm_batch": 4}, ("norm_batch=4", "5 (the batch)")),
        ({"batch": 5, "norm_batch": 24}, ("norm_batch=24", "23 (the training samples)")),
        ({"batch": 2, "world": 3}, ("batch=2", "3 processes")),
        ({"batch": 11, "world": 2}, ("batch=11", "2 processes")),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(DataError) as caught:
        Batches(numbered(), seed=0, **options)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_last_batch_as_large_as_the_processes_is_enough():
    data = numbered()
    assert [len(part.targets) for part in parts(data, 3, 0, 1, batch=20, seed=0)] == [1, 1, 1]
