"""Ways of predicting a split, and what of it goes into a file."""

import json
import math

import pytest
import torch
from small_data import made_up, network

import bayesnorm
from bayesnorm.data import passes
from bayesnorm.data.augment import Augment
from bayesnorm.data.passes import images_of
from bayesnorm.evaluate import Curve, as_json, evaluate, fit_temperature, judge, nll
from bayesnorm.evaluate.evaluation import POINTS, curve_as_json, measures_as_json, measures_from_json


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_the_draws_do_not_depend_on_how_the_split_is_cut(pixels, monkeypatch):
    """Every image has noise of its own, by its number in the split."""
    data, net = made_up(pixels=pixels), network("weight", "bayes", pixels=pixels)
    size = data.image_size[1] * data.image_size[2]
    found = []
    for images in (1000, 7, 1):
        monkeypatch.setattr(passes, "PIXELS", images * size)
        found.append(evaluate(net, data, "test", samples=12)["mc12"].measures)
    for measures in found[1:]:
        assert measures.nll == pytest.approx(found[0].nll, rel=1e-6)
        assert measures.mutual_info == pytest.approx(found[0].mutual_info, rel=1e-4)
        assert measures.temperature == pytest.approx(found[0].temperature, rel=1e-4)


WAYS = {
    "single": {"samples": 0},
    "moments": {"method": "moments"},
    "mc10": {"samples": 10},
    "mc25": {"samples": 25},
}


def test_it_is_what_predict_says():
    data, net = made_up(), network("analytic", "bayes")
    seen = []
    found = evaluate(net, data, "test", samples=25, progress=seen.append)
    assert list(found) == list(WAYS)
    for way, options in WAYS.items():
        expected = bayesnorm.predict(net, data.standardized(data.test.images), **options)
        val = bayesnorm.predict(net, data.standardized(data.val.images), **options).log_probs
        measures = found[way].measures
        assert measures.nll == pytest.approx(nll(expected.log_probs, data.test.targets), rel=1e-6)
        assert measures.temperature == pytest.approx(fit_temperature(val, data.val.targets), rel=1e-4)
        if way == "single":
            assert measures.mutual_info is None, "there are no draws to disagree"
        else:
            assert measures.mutual_info == pytest.approx(expected.mutual_info.double().mean().item(), rel=1e-4)
    assert sum(seen) == 4 * (len(data.test) + len(data.val)), "each way predicts both splits"


def test_nothing_is_fitted_unless_it_is_asked_for():
    seen = []
    found = evaluate(network("weight", "bayes"), made_up(), "test", 5, progress=seen.append, calibrate=False)
    assert {judged.measures.temperature for judged in found.values()} == {None}
    assert sum(seen) == 3 * 12


def test_validation_images_are_augmented_by_the_seed():
    data, net = made_up(augment=Augment(shift=2), augment_val=True), network(None)
    found = {seed: evaluate(net, data, "val", 0, seed)["single"].measures.nll for seed in (0, 1)}
    for seed, value in found.items():
        (piece,) = images_of(data, "val", seed)
        assert value == pytest.approx(nll(net(piece[0]).log_softmax(1).detach(), piece[1]), rel=1e-6)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("scale", "samples", "ways"),
    [
        ("point", 30, ["single"]),
        ("bayes", 0, ["single"]),
        ("bayes", 4, ["single", "moments", "mc4"]),
        ("noise", 10, ["single", "moments", "mc10"]),
        ("bayes", 11, ["single", "moments", "mc10", "mc11"]),
    ],
)
def test_ways_of_predicting(scale, samples, ways):
    assert list(evaluate(network("weight", scale), made_up(), "val", samples)) == ways


def test_pixels_are_predicted_by_moments_too():
    found = evaluate(network("weight", "bayes", pixels=True), made_up(pixels=True), "val", 4)
    assert list(found) == ["single", "moments", "mc4"]
    assert found["moments"].measures.mutual_info > 0


def test_numbers_of_parts_are_those_of_the_whole():
    net, x = network("weight", "bayes"), made_up().standardized(made_up().test.images)
    whole = bayesnorm.predict(net, x, samples=5).probs
    parts = [bayesnorm.predict(net, part, samples=5, first=first).probs for first, part in ((0, x[:6]), (6, x[6:]))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)


# For a file.


def stored(values):
    """As it comes back from a file; what JSON does not know is refused."""
    return json.loads(json.dumps(values, allow_nan=False))


def test_a_file_gives_back_the_measures():
    found = evaluate(network("analytic", "bayes"), made_up(), "test", 12)
    document = stored(as_json(found))
    assert list(document) == ["metrics", "reliability", "coverage"]
    for way, judged in found.items():
        assert measures_from_json(document["metrics"][way]) == judged.measures
        for name in ("count", "confidence", "accuracy"):
            values = getattr(judged.reliability, name).tolist()
            assert document["reliability"][way][name] == [None if math.isnan(value) else value for value in values]
        for name, curve in (("entropy", judged.by_entropy), ("max_prob", judged.by_max_prob)):
            assert document["coverage"][way][name]["coverage"] == curve.coverage.tolist()
            assert document["coverage"][way][name]["risk"] == curve.risk.tolist()


def test_what_a_later_version_adds_does_not_matter():
    judged = evaluate(network(None), made_up(), "test", 0)["single"]
    assert measures_from_json({**measures_as_json(judged.measures), "colour": 1}) == judged.measures


@pytest.mark.parametrize("impossible", ["test", "val", "both"])
def test_an_infinite_likelihood_comes_back_as_one(impossible):
    """What has no temperature has no calibrated likelihood, which is not the same as an infinite one."""
    possible, never = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 0.0]]).log()
    targets = torch.tensor([1])

    def predicted(name):
        return [(never if impossible in (name, "both") else possible, None, targets)]

    measures = judge(predicted).measures
    assert measures.nll == pytest.approx(math.log(2) if impossible == "val" else math.inf)
    document = stored(measures_as_json(measures))
    assert (document["nll"] is None) == (impossible != "val")
    assert measures_from_json(document) == measures
    assert measures.calibrated_nll == (math.inf if impossible == "test" else None)


def curve_of(count):
    """Every prediction has a score of its own, every third is wrong."""
    accepted = torch.arange(1, count + 1)
    return Curve(accepted.double(), accepted, accepted // 3)


@pytest.mark.parametrize("count", [1, 2, 199, POINTS, POINTS + 1, 1000, 12345])
def test_a_stored_curve_has_few_points_the_first_and_the_last_among_them(count):
    curve = curve_of(count)
    found = stored(curve_as_json(curve))
    points = list(zip(found["coverage"], found["risk"], strict=True))
    every = list(zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True))
    assert len(points) <= POINTS
    assert (points[0], points[-1]) == (every[0], every[-1])
    assert set(points) <= set(every), "none is made up"
    assert points == sorted(points, key=lambda point: point[0])
    gaps = torch.tensor(found["coverage"]).diff()
    assert not len(gaps) or float(gaps.max()) <= 1 / (POINTS - 1) + 1 / count + 1e-6, "no hole wider than a step"
    if count <= POINTS:
        assert points == every
