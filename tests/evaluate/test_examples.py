"""Most and least certain images: their order, their numbers, and that the pictures show them."""

import base64
import io
import json
import math

import pytest
import torch
from small_data import made_up, network
from torch import Tensor

import bayesnorm
from bayesnorm.data import passes
from bayesnorm.data.base import IGNORE, Data, Split, make_data
from bayesnorm.data.picture import HIGHLIGHT
from bayesnorm.evaluate import evaluate, examples

image_module = pytest.importorskip("PIL.Image")

SETTINGS = {"single": ("point", {"samples": 0}), "mc12": ("bayes", {"samples": 12})}


def pixels_of(text: str) -> Tensor:
    """A grey picture as numbers between 0 and 1, ``(H, W)``."""
    with image_module.open(io.BytesIO(base64.b64decode(text))) as image:
        assert (image.format, image.mode) == ("PNG", "L")
        return torch.tensor(list(image.tobytes())).view(image.height, image.width).double() / 255


def colours_of(text: str) -> Tensor:
    """A coloured picture as numbers between 0 and 1, ``(H, W, 3)``."""
    with image_module.open(io.BytesIO(base64.b64decode(text))) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        return torch.tensor(list(image.tobytes())).view(image.height, image.width, 3).double() / 255


def shows(text: str, values: Tensor) -> bool:
    """Whether a picture shows these values, rounded to bytes."""
    return float((pixels_of(text) - values.double()).abs().max()) <= 0.501 / 255


def in_range(data: Data, image: Tensor) -> Tensor:
    """Between the extremes of the training images; of segmented ones, those without two pixels in a thousand."""
    values = data.train.images.flatten().sort().values
    rare = int(0.002 * (len(values) - 1)) if data.per_pixel else 0
    low, high = values[rare], values[len(values) - 1 - rare]
    return ((image.double() - low) / (high - low)).clamp(0, 1)


@pytest.mark.parametrize("way", SETTINGS)
def test_images_are_ordered_by_their_entropy(way: str) -> None:
    scale, options = SETTINGS[way]
    data, net = made_up(), network("weight", scale)
    found = examples(net, data, samples=12, count=4)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["way"], found["classes"]) == (way, ["a", "b", "c"])
    out = bayesnorm.predict(net, data.standardized(data.test.images), **options)
    order = out.entropy.argsort().tolist()
    assert [entry["index"] for entry in found["certain"]] == order[:4]
    assert [entry["index"] for entry in found["uncertain"]] == order[::-1][:4]
    for entry in found["certain"] + found["uncertain"]:
        index = entry["index"]
        assert entry["entropy"] == pytest.approx(out.entropy[index].item(), rel=1e-5)
        assert entry["mutual_info"] == pytest.approx(out.mutual_info[index].item(), rel=1e-3, abs=1e-7)
        assert (entry["mutual_info"] > 0) == (way != "single")
        assert entry["probs"] == pytest.approx(out.probs[index].tolist(), rel=1e-5)
        assert entry["target"] == data.test.targets[index]
        assert shows(entry["image"], in_range(data, data.test.images[index, 0]))


def test_the_draws_are_those_of_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is predicted alone has the draws that it has among the others, however those are cut."""
    data, net = made_up(), network("weight", "bayes")
    whole = examples(net, data, samples=12, count=6)
    monkeypatch.setattr(passes, "PIXELS", 5 * 64)
    cut = examples(net, data, samples=12, count=6)
    assert [entry["index"] for entry in cut["certain"]] == [entry["index"] for entry in whole["certain"]]
    entries = whole["certain"] + whole["uncertain"]
    assert sorted(entry["index"] for entry in entries) == list(range(12)), "each image is in one of the two"
    mean = sum(entry["entropy"] for entry in entries) / 12
    assert mean == pytest.approx(evaluate(net, data, samples=12)["mc12"].measures.entropy, rel=1e-5)


def test_few_images_are_not_shown_twice() -> None:
    data = made_up()
    odd = make_data("odd", data.train, data.val, data.test[slice(0, 5)], data.classes)
    found = examples(network(None), odd, count=8)
    assert len(found["certain"]) == len(found["uncertain"]) == 2
    assert len({entry["index"] for entry in found["certain"] + found["uncertain"]}) == 4


def test_pixels_have_maps() -> None:
    data, net = made_up(pixels=True), network("weight", "bayes", pixels=True)
    found = examples(net, data, samples=7, count=3)
    assert found["way"] == "mc7"
    out = bayesnorm.predict(net, data.standardized(data.test.images), samples=7)
    mean = out.entropy.mean((1, 2))
    assert [entry["index"] for entry in found["certain"]] == mean.argsort().tolist()[:3]
    assert [entry["index"] for entry in found["uncertain"]] == mean.argsort(descending=True).tolist()[:3]
    for entry in found["certain"] + found["uncertain"]:
        index = entry["index"]
        assert {"target", "probs"}.isdisjoint(entry)
        assert entry["entropy"] == pytest.approx(mean[index].item(), rel=1e-5)
        assert shows(entry["image"], in_range(data, data.test.images[index, 0]))
        targets = data.test.targets[index]
        assert shows(entry["truth"], targets.where(targets != IGNORE, 0) / 2)
        assert shows(entry["predicted"], out.probs[index].argmax(0) / 2)
        grey = in_range(data, data.test.images[index, 0])
        for name, top in found["tops"].items():
            share = (getattr(out, name)[index].double() / top).clamp(max=1)
            expected = [grey * (1 - share) + part * share for part in HIGHLIGHT]
            assert (colours_of(entry[f"{name}_map"]) - torch.stack(expected, -1)).abs().max() <= 0.51 / 255
    assert found["tops"]["entropy"] == pytest.approx(math.log(3))
    shown = [entry["index"] for entry in found["certain"] + found["uncertain"]]
    second = out.mutual_info[shown].flatten(1).sort().values[:, -2].max()  # 0.995 of 64 pixels
    assert found["tops"]["mutual_info"] == pytest.approx(second.item(), rel=1e-4)


def test_a_single_pass_has_no_map_of_mutual_information() -> None:
    found = examples(network("weight", pixels=True), made_up(pixels=True), count=2)
    assert list(found["tops"]) == ["entropy"]
    assert all("mutual_info_map" not in entry for entry in found["certain"])


def test_colours_stay_colours() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (8, 3, 8, 8), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(8) % 2)
    data = make_data("colours", split, split, split, ("a", "b"))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    for entry in examples(net, data, count=4)["certain"]:
        with image_module.open(io.BytesIO(base64.b64decode(entry["image"]))) as image:
            assert image.mode == "RGB"
            assert image.tobytes() == images[entry["index"]].permute(1, 2, 0).contiguous().numpy().tobytes()
