"""Scores of two sets of inputs, against counting."""

import math

import pytest
import torch
from small_data import made_up, network
from torch import Tensor

import bayesnorm
from bayesnorm._predict import Prediction
from bayesnorm.data import Split, digits, make_data, passes
from bayesnorm.data.foreign import range_of
from bayesnorm.evaluate.ood import Separation, between, scores_of, separation, separations
from bayesnorm.models import all_cnn


def counted_auroc(inside: Tensor, outside: Tensor) -> float:
    """Share of pairs in the right order, ties counting half."""
    right = (outside[:, None] > inside).double() + 0.5 * (outside[:, None] == inside)
    return float(right.mean())


def counted_fpr(inside: Tensor, outside: Tensor) -> float:
    """Accepted are the scores up to a threshold: the lowest that accepts 95 % inside."""
    for threshold in inside.sort().values:
        if (inside <= threshold).double().mean() >= 0.95:
            return float((outside <= threshold).double().mean())
    raise AssertionError


def counted_precision(positive: Tensor, negative: Tensor) -> float:
    """Average precision of finding the positive ones by high scores: mean over them of the precision at their score."""
    hits = (positive >= positive[:, None]).double().sum(1)
    alarms = (negative >= positive[:, None]).double().sum(1)
    return float((hits / (hits + alarms)).mean())


@pytest.mark.parametrize("levels", [5, 1000], ids=["many ties", "few ties"])
@pytest.mark.parametrize(("inner", "outer"), [(60, 35), (20, 20), (7, 100)])
def test_it_is_what_counting_gives(levels: int, inner: int, outer: int) -> None:
    generator = torch.Generator().manual_seed(inner)
    inside = torch.randint(levels, (inner,), generator=generator) / levels
    outside = torch.randint(levels, (outer,), generator=generator) / levels + 0.2
    found = separation(inside, outside)
    expected = (
        counted_auroc(inside.double(), outside.double()),
        counted_precision(-inside, -outside),
        counted_precision(outside, inside),
        counted_fpr(inside, outside),
    )
    assert found == pytest.approx(expected, rel=1e-12)


def test_perfect_and_inverted_scores() -> None:
    low, high = torch.linspace(0, 1, 40), torch.linspace(2, 3, 10)
    assert separation(low, high) == Separation(1.0, 1.0, 1.0, 0.0)
    assert separation(high, low).auroc == 0.0
    assert separation(high, low).fpr95 == 1.0


def test_equal_scores_tell_nothing() -> None:
    found = separation(torch.full((30,), 0.5), torch.full((10,), 0.5))
    assert found == pytest.approx((0.5, 0.75, 0.25, 1.0))


@pytest.mark.parametrize(
    ("other", "expected"), [(2.0, (1, 1, 1, 0)), (1.0, (0.5, 0.5, 0.5, 1)), (0.5, (0, 0.5, 0.5, 1))]
)
def test_one_element_each(other: float, expected: tuple[float, ...]) -> None:
    assert separation(torch.tensor([1.0]), torch.tensor([other])) == expected


def test_exactly_95_percent_is_enough() -> None:
    """Of 20 inner scores 19 are below both outer ones."""
    inside = torch.cat([torch.zeros(19), torch.ones(1)])
    assert separation(inside, torch.full((2,), 0.5)).fpr95 == 0.0
    assert separation(inside[1:], torch.full((2,), 0.5)).fpr95 == 1.0  # 18 of 19 are less


def test_maps_of_scores_are_flattened() -> None:
    inside, outside = torch.rand(3, 4, 5), torch.rand(2, 4, 5) + 0.1
    assert separation(inside, outside) == separation(inside.flatten(), outside.flatten())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    good, broken = torch.zeros(3), torch.tensor([0.0, bad])
    with pytest.raises(ValueError, match="inside: 1 of 2 scores are NaN or infinite"):
        separation(broken, good)
    with pytest.raises(ValueError, match="outside: 1 of 2 scores are NaN or infinite"):
        separation(good, broken)


def test_no_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="outside: there are no scores"):
        separation(torch.zeros(3), torch.zeros(0))


def prediction(logits: Tensor) -> Prediction:
    """Of a network that returns these logits."""
    return bayesnorm.predict(torch.nn.Identity(), logits, samples=0)


def test_scores_rise_with_uncertainty() -> None:
    found = scores_of(prediction(torch.tensor([[4.0, 0, 0], [1, 0, 0], [0, 0, 0]])))
    assert list(found) == ["entropy", "mutual_info", "max_prob"]
    for name in ("entropy", "max_prob"):
        assert bool((found[name].diff() > 0).all())
    expected = 1 - 1 / (1 + 2 * torch.tensor([-4.0, -1, 0]).exp())
    torch.testing.assert_close(found["max_prob"], expected)
    torch.testing.assert_close(found["entropy"][2], torch.tensor(3.0).log())
    assert bool((found["mutual_info"] == 0).all())


def test_nearly_certain_predictions_are_still_told_apart() -> None:
    """1 - p is 0 in float32 for both."""
    out = prediction(torch.tensor([[30.0, 0], [25.0, 0]]))
    assert bool((out.probs.max(1).values == 1).all())
    scores = scores_of(out)["max_prob"]
    torch.testing.assert_close(scores, torch.tensor([-30.0, -25]).exp(), rtol=1e-5, atol=0)
    assert separation(scores[:1], scores[1:]).auroc == 1.0


def test_scores_of_pixels_keep_their_place() -> None:
    logits = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    found = scores_of(prediction(logits))
    for scores in found.values():
        assert scores.shape == (2, 4, 5)
    torch.testing.assert_close(found["max_prob"], 1 - logits.softmax(1).max(1).values)


def test_every_score_is_compared() -> None:
    sure, unsure = prediction(torch.eye(3) * 5), prediction(torch.eye(3))
    found = separations(sure, unsure)
    assert found["entropy"] == found["max_prob"] == Separation(1.0, 1.0, 1.0, 0.0)
    assert found["mutual_info"].auroc == 0.5


@pytest.mark.parametrize(("scale", "samples"), [("point", 0), ("bayes", 12)])
def test_two_data_sets_are_told_apart_as_by_their_predictions(scale, samples):
    data, net = made_up(), network("weight", scale)
    other = data.train.images * 3 - 1
    found = between(net, data, other, samples)
    own = bayesnorm.predict(net, data.standardized(data.test.images), samples)
    foreign = bayesnorm.predict(net, data.standardized(other), samples)
    assert list(found) == ["entropy", *(["mutual_info"] if samples else []), "max_prob"]
    expected = separations(own, foreign)
    for name, separation_ in found.items():
        assert separation_ == pytest.approx(expected[name], abs=1e-6)


def test_it_does_not_depend_on_how_the_images_are_cut(monkeypatch):
    """Every image has noise of its own, by its number."""
    data, net = made_up(), network("weight", "bayes")
    whole = between(net, data, data.train.images, samples=3)
    monkeypatch.setattr(passes, "PIXELS", 5 * 8 * 8)
    for name, parts in between(net, data, data.train.images, samples=3).items():
        assert parts == pytest.approx(whole[name], abs=1e-6)


def test_another_data_set_is_standardized_as_the_network_knows_it():
    data, net = made_up(), network("weight")
    other = made_up(seed=1)
    low, high = range_of(other)
    least, most = range_of(data)
    images = least + (other.test.images - low) / (high - low) * (most - least)
    assert between(net, data, other) == between(net, data, images)


def test_the_same_images_in_other_units_are_not_another_kind():
    """uint8 against floating point: nothing tells a set from itself."""
    data, net = digits(), all_cnn("weight", "point", "same", width=0.0625, in_channels=1)
    as_bytes = [
        Split((part.images * 255 / 16).round().to(torch.uint8), part.targets) for part in (data.train, data.test)
    ]
    stored = make_data("bytes", as_bytes[0], as_bytes[1], as_bytes[1], data.classes)
    assert between(net, data, stored)["entropy"].auroc == pytest.approx(0.5, abs=0.02)
    assert between(net, stored, data)["entropy"].auroc == pytest.approx(0.5, abs=0.02)


def test_pixels_are_averaged_over_each_image():
    data, net = made_up(pixels=True), network("weight", pixels=True)
    found = between(net, data, data.val.images)
    inner, outer = (
        bayesnorm.predict(net, data.standardized(split.images), 0).entropy.mean((1, 2))
        for split in (data.test, data.val)
    )
    assert found["entropy"] == pytest.approx(separation(inner, outer), abs=1e-6)


def test_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"takes 1 channels"):
        between(network("weight"), made_up(), torch.zeros(3, 2, 8, 8))


def test_a_single_pass_has_no_mutual_information():
    data = made_up()
    outer = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert set(between(network("weight", "bayes"), data, outer, samples=0)) == {"entropy", "max_prob"}
    assert set(between(network("weight", "bayes"), data, outer, samples=2)) == {"entropy", "mutual_info", "max_prob"}


def test_no_image_is_refused():
    with pytest.raises(ValueError, match="outside: there is no image"):
        between(network("weight"), made_up(), torch.zeros(0, 1, 8, 8))
