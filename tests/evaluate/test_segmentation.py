"""IoU, Dice and SEG: closed forms, slow and obvious versions, and sums over pieces."""

import dataclasses

import pytest
import torch
from small_data import made_up, network
from torch import Tensor, nn

from bayesnorm.data import passes
from bayesnorm.data.base import IGNORE, Data, Split, make_data
from bayesnorm.evaluate import ObjectTally, OverlapTally, Panel, evaluate
from bayesnorm.evaluate.segmentation import components, seg_of_objects


def random_maps(classes: int, count: int = 6, size: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    predicted, targets = (torch.randint(0, classes, (count, size, size), generator=generator) for _ in range(2))
    return predicted, targets.masked_fill(torch.rand(targets.shape, generator=generator) < 0.1, IGNORE)


def overlap(predicted: Tensor, targets: Tensor, index: int) -> tuple[float, float]:
    """Slow and obvious, pixel by pixel."""
    pairs = [
        (p == index, t == index) for p, t in zip(predicted.flatten(), targets.flatten(), strict=True) if t != IGNORE
    ]
    both, either = sum(bool(p and t) for p, t in pairs), sum(bool(p or t) for p, t in pairs)
    return both / either, 2 * both / (both + either)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("piece", [1, 4, 6])
def test_overlap_of_the_foreground(classes: int, piece: int) -> None:
    predicted, targets = random_maps(classes)
    tally = OverlapTally(classes)
    for said, true in zip(predicted.split(piece), targets.split(piece), strict=True):
        tally.update(said, true)
    each = [overlap(predicted, targets, index) for index in range(1, classes)]
    assert tally.compute() == pytest.approx([sum(values) / len(each) for values in zip(*each, strict=True)])


def test_a_class_may_be_what_does_not_count() -> None:
    tally = OverlapTally(3, ignore_index=2)
    tally.update(torch.tensor([[0, 1, 1, 2]]), torch.tensor([[0, 1, 2, 2]]))
    assert tally.compute() == (1.0, 1.0)


def test_predictions_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"predicted classes \(3, 4, 4\) for targets \(1, 4, 4\)"):
        OverlapTally(2).update(torch.zeros(3, 4, 4), torch.zeros(1, 4, 4))
    with pytest.raises(ValueError, match=r"predicted classes \(3, 4, 4\) for objects \(2, 4, 4\): pass \(N, H, W\)"):
        ObjectTally().update(torch.zeros(3, 4, 4), torch.zeros(2, 4, 4))


def test_classes_that_are_nowhere_do_not_count() -> None:
    tally = OverlapTally(4)
    tally.update(torch.tensor([[0, 1, 1, 0]]), torch.tensor([[0, 1, 2, 0]]))
    assert tally.compute() == pytest.approx((0.25, 1 / 3))  # class 1: 1/2 and 2/3, class 2: 0, class 3 is nowhere
    nothing = OverlapTally(3)
    nothing.update(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))
    assert nothing.compute() == (1.0, 1.0)


def slow_seg(predicted: Tensor, true: Tensor) -> list[float]:
    """As the challenge words it, object by object."""
    found = []
    for number in sorted({int(n) for n in true.flatten() if n}):
        reference = true == number
        value = 0.0
        for other in range(1, int(predicted.max()) + 1):
            segment = predicted == other
            shared = int((reference & segment).sum())
            if shared > 0.5 * int(reference.sum()):
                value = shared / int((reference | segment).sum())
        found.append(value)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_seg_is_that_of_the_challenge(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 4, (2, 6, 6), generator=generator).repeat_interleave(4, 1).repeat_interleave(4, 2)
    true, predicted = coarse[0] * 7, coarse[1]
    predicted = torch.where(torch.rand(predicted.shape, generator=generator) < 0.6, true // 7, predicted)
    assert seg_of_objects(predicted, true).tolist() == pytest.approx(slow_seg(predicted, true))
    assert max(slow_seg(predicted, true)) > 0


def test_half_is_not_enough_and_merged_cells_count_once() -> None:
    true = torch.tensor([[3, 3, 0, 9, 9]])
    assert seg_of_objects(torch.tensor([[1, 0, 0, 0, 0]]), true).tolist() == [0, 0]
    assert seg_of_objects(torch.tensor([[1, 1, 1, 1, 1]]), true).tolist() == pytest.approx([2 / 5, 2 / 5])
    assert seg_of_objects(torch.zeros(1, 5, dtype=torch.long), true).tolist() == [0, 0]
    assert seg_of_objects(true, true).tolist() == [1, 1]
    assert seg_of_objects(true, torch.zeros_like(true)).tolist() == []


def test_objects_that_meet_at_a_corner_are_two() -> None:
    found = components(torch.tensor([[True, False], [False, True]]))
    assert found.tolist() == [[1, 0], [0, 2]]
    assert components(torch.tensor([[True, True], [False, True]])).max() == 1


def test_seg_is_the_mean_over_objects_not_images() -> None:
    true = torch.tensor([[[1, 1, 0, 0, 0, 2]], [[0, 0, 0, 5, 5, 5]]])
    predicted = torch.tensor([[[1, 1, 0, 0, 0, 0]], [[0, 0, 0, 1, 1, 0]]])
    whole, parts = ObjectTally(), ObjectTally()
    whole.update(predicted, true)
    for said, number in zip(predicted.split(1), true.split(1), strict=True):
        parts.update(said, number)
    assert whole.compute() == parts.compute() == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert ObjectTally().compute() is None


def test_the_panel_has_them_where_pixels_have_classes() -> None:
    data, net = made_up(pixels=True), network("weight", "bayes", pixels=True)
    panel = Panel()
    panel.update(torch.rand(4, 3).log_softmax(1), None, torch.tensor([0, 1, 2, 0]))
    assert panel.judge().measures.iou is None
    found = evaluate(net, data, samples=4)
    assert all(0 < judged.measures.iou < judged.measures.dice < 1 for judged in found.values())
    assert found["single"].measures.seg is None, "the objects are not known"


def masks() -> tuple[Data, nn.Module]:
    """Images that are masks, of two objects each, and a network that sees them."""
    objects = torch.zeros(9, 16, 16, dtype=torch.int32)
    for index in range(9):
        objects[index, 1 : 4 + index, 2:5] = 4
        objects[index, 2:6, 9 : 11 + index // 2] = 300
    images, targets = objects[:, None].clamp(max=1).float(), (objects > 0).long()
    split = Split(images, targets, objects)
    net = nn.Conv2d(1, 2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1))
        net.bias.zero_()
    return make_data("masks", split, split[slice(0, 3)], split, ("background", "cell")), net


@pytest.mark.parametrize("images", [9, 2])
def test_objects_of_a_split_are_those_of_its_images(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network sees the mask: SEG is 1 on every piece, and not on the split in another order."""
    monkeypatch.setattr(passes, "PIXELS", images * 16 * 16)
    data, net = masks()
    measures = evaluate(net, data)["single"].measures
    assert (measures.seg, measures.iou, measures.dice) == (1.0, 1.0, 1.0)
    turned = dataclasses.replace(data.test, objects=data.test.objects.flip(0))
    assert evaluate(net, dataclasses.replace(data, test=turned))["single"].measures.seg < 0.9


def test_objects_of_images_that_are_augmented_are_not_known() -> None:
    """Training images are, and where their objects have moved to is not told."""
    data, net = masks()
    assert evaluate(net, data, "train")["single"].measures.seg is None


def test_no_temperature_is_fitted_where_the_test_set_is_the_validation_set() -> None:
    data, net = made_up(pixels=True), network("weight", "bayes", pixels=True)
    same = make_data("same", data.train, data.val, data.val, data.classes)
    assert not same.has_test
    assert not same.to("cpu").has_test
    assert evaluate(net, data, samples=0)["single"].measures.temperature is not None
    assert evaluate(net, same, samples=0)["single"].measures.temperature is None
