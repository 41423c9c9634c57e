"""Publishing: what is halved, what it changes, what is refused, and that nothing half-written stays."""

import copy
import dataclasses
import errno

import pytest
import torch
from published import NAME, trained
from safetensors.torch import save

import bayesnorm
from bayesnorm._files import sha256
from bayesnorm.errors import RunError
from bayesnorm.models import all_cnn, load
from bayesnorm.models._tensors import tensors_of
from bayesnorm.train import durable
from bayesnorm.train import publish as module
from bayesnorm.train.publish import accepted, halved, publish

METHODS = [("analytic", "bayes"), ("weight", "noise"), ("batch", "point"), ("none", "point")]


@pytest.fixture(scope="module", params=METHODS, ids="+".join)
def run(request, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("publish"), *request.param)


@pytest.fixture(scope="module")
def bayes(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("bayes"))


def is_weight(net, name):
    return name in dict(net.named_parameters()) and dict(net.named_parameters())[name].dim() > 1


def test_weights_are_halved_and_all_else_is_kept_to_the_last_bit(run):
    stored, state = halved(run.net), run.net.state_dict()
    assert list(stored) == list(state)
    for name, value in state.items():
        if is_weight(run.net, name):
            assert stored[name].dtype == torch.float16
            assert (stored[name].float() - value).abs().max() <= value.abs().max() * 2**-11
        else:
            assert stored[name].dtype == value.dtype
            assert torch.equal(stored[name], value), name


def spacing(weight, bits):
    """Distance of neighbouring numbers of so many significant bits."""
    return torch.exp2(weight.abs().clamp(min=2**-14).log2().floor() - bits + 1)


def predicted_change(net, x, bits):
    """Std of the log-probabilities ``(N, classes)`` when weights are rounded, to first order.

    Rounding errors are independent and uniform: ``sum_w (d out / d w)^2 spacing(w)^2 / 12``.
    """
    weights = [value for name, value in net.named_parameters() if is_weight(net, name)]
    out = net(x)
    change = torch.zeros_like(out)
    for place in torch.cartesian_prod(*[torch.arange(size) for size in out.shape]).tolist():
        gradients = torch.autograd.grad(out[tuple(place)], weights, retain_graph=True)
        parts = [(g * spacing(w, bits)).square().sum() / 12 for g, w in zip(gradients, weights, strict=True)]
        change[tuple(place)] = sum(parts).sqrt()
    return change.detach()


def standardized_change(run, dtype, bits=11):
    """Changes of log-probabilities by rounding, in units of what is predicted for 11 bits."""
    net = copy.deepcopy(run.net).double().eval()
    x = run.data.standardized(run.data.test.images[:12]).double()
    rounded = copy.deepcopy(net)
    state = {n: v.to(dtype).double() if is_weight(net, n) else v for n, v in net.state_dict().items()}
    rounded.load_state_dict(state)
    expected = predicted_change(net, x, bits)
    with torch.no_grad():
        return (rounded(x) - net(x)) / expected


def test_predictions_change_by_no_more_than_the_rounding_of_eleven_bits_explains(run):
    change = standardized_change(run, torch.float16)
    assert change.abs().max() < 5
    assert 0.2 < change.square().mean().sqrt() < 3  # the prediction is no loose bound


def test_eight_bits_would_be_found_out(run):
    assert standardized_change(run, torch.bfloat16).abs().max() > 5


@torch.no_grad()
def test_a_scale_is_worth_more_bits_than_a_weight(bayes):
    """Halving a few scales changes predictions by as much as halving all of the weights."""
    x = bayes.data.standardized(bayes.data.test.images)
    state, expected = bayes.net.state_dict(), bayes.net(x)

    def change(chosen):
        net = copy.deepcopy(bayes.net)
        net.load_state_dict({name: v.half().float() if chosen(name) else v for name, v in state.items()})
        return (net(x) - expected).square().mean().sqrt()

    def numbers(chosen):
        return sum(value.numel() for name, value in state.items() if chosen(name))

    def scales(name):
        return name.endswith("scale.s")

    def weights(name):
        return is_weight(bayes.net, name)

    assert numbers(scales) < numbers(weights) / 50
    assert change(scales) > change(weights) / 2


def test_the_network_of_the_paper_fits_into_three_megabytes():
    assert 2 * 1_368_000 < len(save(halved(all_cnn()))) < 2.8e6


def test_a_weight_of_any_length_is_stored_well_and_the_run_is_left_alone(tmp_path):
    net = trained(tmp_path, project=False).net
    with torch.no_grad():
        for layer in net.features[::2]:
            layer.weight.mul_(1e-7)
    before = copy.deepcopy(net.state_dict())
    stored = {name: value.float() if value.is_floating_point() else value for name, value in halved(net).items()}
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    other = copy.deepcopy(net)
    other.load_state_dict(stored)
    x = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(other(x).exp(), net(x).exp(), rtol=0, atol=module.LARGEST)


def test_what_was_published_says_what_it_is(run, tmp_path):
    made = publish(run, NAME, tmp_path / "new" / "weights", samples=10)
    path = tmp_path / "new" / "weights" / f"{NAME}.safetensors"
    card = made.card
    assert sorted(file.name for file in path.parent.iterdir()) == [f"{NAME}.json", path.name]
    assert card["file"] == {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path.read_bytes())}
    assert card["training"]["digest"] == run.result["digest"]
    assert card["training"]["seed"] == run.config.seed
    assert "directory" not in card["training"]["recipe"]
    assert card["halving"]["images"] == len(run.data.val)
    assert 0 < card["halving"]["largest_change"] < module.LARGEST
    random = bool(bayesnorm.posterior(run.net))
    assert list(card["metrics"]) == (["single", "moments", "mc10"] if random else ["single"])
    assert set(tensors_of(path.read_bytes(), "x")) == set(run.net.state_dict())
    again = load(NAME, path.parent)
    assert again.card == card
    images = run.data.val.images
    samples = card["accept"]["samples"]
    assert samples == (10 if random else 0)
    out = again.predict(images, samples)
    expected = bayesnorm.predict(run.net, run.data.standardized(images), samples)
    change = (out.probs - expected.probs).abs().max().item()
    assert change <= card["halving"]["largest_change"] + 1e-6
    taken = out.entropy <= again.threshold + 1e-6
    wrong = out.probs.argmax(1) != run.data.val.targets
    assert wrong[taken].float().mean() <= 0.01
    assert taken.float().mean().item() == pytest.approx(card["accept"]["coverage"])


def test_all_validation_images_say_what_can_be_accepted(bayes, tmp_path, monkeypatch):
    """Of a few it would be one that fits them, and others are wrong more often; some at a time, as all at once."""
    whole = publish(bayes, "whole", tmp_path, samples=2).card
    monkeypatch.setattr(module, "CHECKED", 20)
    pieces = publish(bayes, "pieces", tmp_path, samples=2).card
    assert pieces["halving"]["images"] == 20
    assert pieces["accept"] == pytest.approx(whole["accept"], rel=1e-4)
    assert pieces["accept"]["images"] == len(bayes.data.val) > 20


def test_the_threshold_is_the_largest_with_one_error_in_a_hundred():
    sure = torch.linspace(0.99, 0.6, 400, dtype=torch.float64)
    log_probs = torch.stack([sure, 1 - sure], 1).log()
    targets = torch.zeros(400, dtype=torch.int64)
    targets[[100, 250, 300]] = 1  # the second makes 2 of 251, the third 3 of 301, which is less than 1 in 100 too
    targets[350:] = 1
    found = accepted(log_probs, targets)
    p = sure[349]
    assert found["coverage"] == 350 / 400
    assert found["entropy"] == pytest.approx(-(p * p.log() + (1 - p) * (1 - p).log()).item())
    assert accepted(log_probs, torch.ones_like(targets)) == {"risk": 0.01, "entropy": None, "coverage": 0.0}


# What is refused, and what is left behind then.


def test_a_run_that_has_not_finished(bayes, tmp_path):
    for result in (None, {"state": "diverged"}):
        with pytest.raises(RunError, match="has not finished: train it with --resume first"):
            publish(dataclasses.replace(bayes, result=result), NAME, tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "All", "a.b", "a--b", "-a"])
def test_a_name_that_is_none(name, bayes, tmp_path):
    with pytest.raises(RunError, match="use small letters, digits and single hyphens"):
        publish(bayes, name, tmp_path)


@pytest.mark.parametrize("end", ["json", "safetensors"])
def test_a_name_that_is_taken(end, bayes, tmp_path):
    path = tmp_path / f"{NAME}.{end}"
    path.write_bytes(b"mine")
    with pytest.raises(RunError, match=rf"{NAME}\.{end} is there already: choose another name"):
        publish(bayes, NAME, tmp_path)
    assert path.read_bytes() == b"mine"


def test_numbers_that_half_precision_does_not_hold(tmp_path):
    run = trained(tmp_path, "none", "point")
    with torch.no_grad():
        run.net.features[0].weight[0] = 1e6
    with pytest.raises(RunError, match=r"features\.0\.weight has values that half precision does not hold"):
        publish(run, NAME, tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


def test_predictions_that_change_too_much(bayes, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 1e-9)
    with pytest.raises(RunError, match="cannot be published in half precision: a probability changes by"):
        publish(bayes, NAME, tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


def full_after(count, monkeypatch):
    """A disk that is full after so many files."""
    written = []
    write = durable.os.replace

    def replace(*names):
        if str(names[1]).endswith(("safetensors", f"{NAME}.json")):
            written.append(names)
        if len(written) > count:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*names)

    monkeypatch.setattr(durable.os, "replace", replace)


@pytest.mark.parametrize("count", [0, 1])
def test_a_full_disk_leaves_nothing(count, bayes, tmp_path, monkeypatch):
    publish(bayes, "first", tmp_path / "elsewhere", samples=0)  # so that nothing is left to evaluate
    full_after(count, monkeypatch)
    with pytest.raises(RunError, match=r"could not be written \(No space left on device\): make room"):
        publish(bayes, NAME, tmp_path / "weights", samples=0)
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_folder_that_is_a_file(bayes, tmp_path):
    (tmp_path / "weights").write_bytes(b"mine")
    with pytest.raises(RunError, match=r"could not be written \(File exists\)"):
        publish(bayes, NAME, tmp_path / "weights", samples=0)


def test_a_file_that_reads_back_otherwise(bayes, tmp_path, monkeypatch):
    read = module.load_pretrained

    def other(*args):
        net = read(*args)
        with torch.no_grad():
            net.net.features[0].weight[0, 0, 0, 0] += 1e-3
        return net

    monkeypatch.setattr(module, "load_pretrained", other)
    with pytest.raises(RunError, match=r"does not read back: net\.features\.0\.weight differs"):
        publish(bayes, NAME, tmp_path / "weights", samples=0)
    assert list((tmp_path / "weights").iterdir()) == []
