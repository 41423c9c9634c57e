import math

import pytest
import torch
from small_data import made_up, network

import bayesnorm
from bayesnorm.data import passes
from bayesnorm.evaluate import Metrics, as_json, evaluate, nll


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_the_draws_do_not_depend_on_how_the_split_is_cut(pixels, monkeypatch):
    """Every image has noise of its own, by its number in the split."""
    data, net = made_up(pixels=pixels), network("weight", "bayes", pixels=pixels)
    size = data.image_size[1] * data.image_size[2]
    found = []
    for images in (1000, 7, 1):
        monkeypatch.setattr(passes, "PIXELS", images * size)
        found.append(evaluate(net, data, "test", samples=12)["mc12"].nll)
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)


def test_it_is_what_predict_says(monkeypatch):
    data, net = made_up(), network("analytic", "bayes")
    seen = []
    found = evaluate(net, data, "test", samples=25, progress=seen.append)
    assert list(found) == ["single", "mc10", "mc25"]
    for name, samples in (("single", 0), ("mc10", 10), ("mc25", 25)):
        expected = bayesnorm.predict(net, data.standardized(data.test.images), samples=samples).log_probs
        assert found[name].nll == pytest.approx(nll(expected, data.test.targets), rel=1e-6)
    assert sum(seen) == len(data.test)


@pytest.mark.parametrize(
    ("scale", "samples", "ways"),
    [
        ("point", 30, ["single"]),
        ("bayes", 0, ["single"]),
        ("bayes", 4, ["single", "mc4"]),
        ("noise", 10, ["single", "mc10"]),
    ],
)
def test_ways_of_predicting(scale, samples, ways):
    assert list(evaluate(network("weight", scale), made_up(), "val", samples)) == ways


def test_infinity_has_no_json():
    assert as_json({"single": Metrics(3, 0.5, math.inf, 0.1)})["single"]["nll"] is None


def test_numbers_of_parts_are_those_of_the_whole():
    net, x = network("weight", "bayes"), made_up().standardized(made_up().test.images)
    whole = bayesnorm.predict(net, x, samples=5).probs
    parts = [bayesnorm.predict(net, part, samples=5, first=first).probs for first, part in ((0, x[:6]), (6, x[6:]))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)
