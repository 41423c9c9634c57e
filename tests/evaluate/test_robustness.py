"""Disturbed inputs: what is added, and that nothing else changes."""

import dataclasses
import math

import pytest
import torch
from scipy import stats
from small_data import made_up, network, state
from torch import Tensor, nn

import bayesnorm
from bayesnorm.data import passes
from bayesnorm.data.base import IGNORE
from bayesnorm.evaluate import Tally, nll, robustness
from bayesnorm.evaluate.robustness import attack_curve, gradient_sign, input_noise, noise_curve

CURVES = [noise_curve, attack_curve]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
@pytest.mark.parametrize("samples", [0, 12])
def test_strength_0_is_plain_evaluation(curve, pixels: bool, samples: int) -> None:
    data, net = made_up(pixels=pixels), network("weight", "bayes", pixels=pixels)
    (zero, plain), (_, disturbed) = curve(net, data, "test", (0, 0.5), samples)
    assert zero == 0.0
    tally = Tally()
    x = data.standardized(data.test.images)
    tally.update(bayesnorm.predict(net, x, samples=samples).log_probs, data.test.targets)
    assert plain == tally.compute()
    assert plain.nll != disturbed.nll
    assert curve(net, data, "test", (0,), samples) == [(0.0, plain)]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_it_does_not_depend_on_how_the_split_is_cut(curve, pixels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data, net = made_up(pixels=pixels), network("weight", "bayes", pixels=pixels)
    whole = curve(net, data, "test", (0.1, 1.0), 5)
    monkeypatch.setattr(passes, "PIXELS", 5 * 64)
    monkeypatch.setattr(robustness, "GRADIENT_PIXELS", 2 * 64)
    seen: list[int] = []
    parts = curve(net, data, "test", (0.1, 1.0), 5, progress=seen.append)
    assert seen == [5, 5, 2]
    for (_, expected), (_, found) in zip(whole, parts, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
@pytest.mark.parametrize("limit", [1, 5, 7])
def test_a_limit_takes_the_first_of_the_split(curve, pixels: bool, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, net = made_up(pixels=pixels), network("weight", "bayes", pixels=pixels)
    fewer = dataclasses.replace(data, test=data.test[:limit])
    expected = curve(net, fewer, "test", (0.0, 0.3), 3)
    assert curve(net, data, "test", (0.0, 0.3), 3, limit=limit) == expected
    monkeypatch.setattr(passes, "PIXELS", 5 * 64)
    seen: list[int] = []
    cut = curve(net, data, "test", (0.0, 0.3), 3, progress=seen.append, limit=limit)
    assert seen == {1: [1], 5: [5], 7: [5, 2]}[limit]
    for (_, whole), (_, found) in zip(expected, cut, strict=True):
        assert found == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("curve", CURVES)
def test_limits_at_and_beyond_the_ends(curve) -> None:
    data, net = made_up(), network("weight")
    whole = curve(net, data, "test", (0.1,))
    for limit in (None, 12, 1000):
        assert curve(net, data, "test", (0.1,), limit=limit) == whole
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"limit={limit}: pass at least 1, or None"):
            curve(net, data, "test", (0.1,), limit=limit)


def test_the_noise_is_standard_normal_and_of_its_image_alone() -> None:
    images = torch.zeros(40, 2, 16, 16)
    found = input_noise(images, seed=3)
    assert stats.kstest(found.flatten().numpy(), stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(1.1 * found.flatten().numpy(), stats.norm.cdf).pvalue < 1e-6
    assert torch.equal(found[7:9], input_noise(images[:2], first=7, seed=3))
    bound = 5 / math.sqrt(images[0].numel())
    correlations = torch.corrcoef(found.flatten(1)) - torch.eye(40)
    assert float(correlations.abs().max()) < bound
    assert abs(float((found * input_noise(images, seed=4)).mean())) < 5 / math.sqrt(images.numel())


def test_a_noise_curve_evaluates_noisy_images() -> None:
    data, net = made_up(), network("weight", "bayes")
    x = data.standardized(data.test.images)
    for strength, found in noise_curve(net, data, "test", (0.3, 2.0), samples=4, seed=5):
        expected = bayesnorm.predict(net, x + strength * input_noise(x, seed=5), samples=4).log_probs
        assert found.nll == pytest.approx(nll(expected, data.test.targets), rel=1e-6)


class Linear(nn.Module):
    """Logits ``(0, w . x)``: the gradient of the loss is known."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        score = (x.flatten(1) * self.weight.flatten()).sum(1)
        return torch.stack([torch.zeros_like(score), score], 1)


def test_the_attack_on_a_linear_network_in_closed_form() -> None:
    """nll = softplus(-t w.x) for t = +-1, so the direction is -t sign(w), also where the network is nearly certain."""
    weight = torch.tensor([[[1.0, -2.0], [0.0, 3.0]]])
    targets = torch.tensor([1, 0, 1, 0])
    x = torch.cat([torch.randn(2, 1, 2, 2), 10 * weight.expand(1, 1, 2, 2), -10 * weight.expand(1, 1, 2, 2)])
    sign = torch.tensor([-1.0, 1.0, -1.0, 1.0]).view(-1, 1, 1, 1)
    assert torch.equal(gradient_sign(Linear(weight), x, targets), sign * weight.sign())


@pytest.mark.parametrize("logit", [10.0, 40.0, 1000.0])
@pytest.mark.parametrize("output", ["logits", "log_probs"])
def test_certainty_does_not_protect(logit: float, output: str) -> None:
    """With logits (l + 2x, x) and target 0 the loss is softplus(-x - l): it falls with x, however small it is."""

    class Sure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = torch.stack([logit + 2 * x[:, 0], x[:, 0]], 1)
            return out.log_softmax(1) if output == "log_probs" else out

    maps = torch.zeros(1, 1, 2, 2)
    assert bool((gradient_sign(Sure(), maps, torch.zeros(1, 2, 2, dtype=torch.int64)) == -1).all())
    pooled = nn.Sequential(Sure(), nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    assert bool((gradient_sign(pooled, maps, torch.zeros(1, dtype=torch.int64)) == -1).all())


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_the_direction_where_pixels_are_unequally_certain(sharpness: float) -> None:
    """``-log p = -logsigmoid(-margin)``: its gradient exists down to e^-700, that of a softmax is lost at e^-37.

    The margins differ: where the least certain pixel is not in reach of a value, that of the others counts.
    """
    data, net = made_up(pixels=True), network("weight", "point", pixels=True).double().eval()
    x, targets = data.standardized(data.test.images).double().requires_grad_(), data.test.targets
    counts = targets != IGNORE
    out = sharpness * net(x)
    targets = targets.clone()  # certain and right, but for the first rows
    targets[:, 2:] = out.argmax(1)[:, 2:].where(counts[:, 2:], IGNORE)
    rival = out.masked_fill(nn.functional.one_hot(targets.where(counts, 0), 3).movedim(-1, 1).bool(), -math.inf)
    margin = rival.logsumexp(1) - out.gather(1, targets.where(counts, 0).unsqueeze(1)).squeeze(1)
    losses = -nn.functional.logsigmoid(-margin)
    (gradient,) = torch.autograd.grad(losses.where(counts, 0.0).sum(), x)

    class Sharp(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return sharpness * net(images)

    found = gradient_sign(Sharp(), x.detach(), targets)
    largest = gradient.abs().flatten(1).amax(1).view(-1, 1, 1, 1)
    clear = (gradient.abs() > 1e-12 * largest) | (gradient == 0)
    assert float(clear.double().mean()) > 0.5
    assert torch.equal(found[clear], gradient.sign()[clear])
    assert sharpness == 1 or float(margin.detach()[counts].min()) < -37  # a plain softmax would be lost


def test_there_is_nothing_to_attack_with_one_class() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    found = gradient_sign(net, torch.randn(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64))
    assert found.tolist() == torch.zeros(3, 1, 2, 2).tolist()


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
@pytest.mark.parametrize("norm", ["batch", "weight", "analytic"])
def test_the_direction_is_that_of_differences(norm: str, pixels: bool) -> None:
    data, net = made_up(pixels=pixels), network(norm, "bayes" if norm != "batch" else "point", pixels=pixels).double()
    x, targets = data.standardized(data.test.images[-2:]).double(), data.test.targets[-2:]
    found = gradient_sign(net, x, targets)

    def loss(inputs: Tensor) -> float:
        return nll(bayesnorm.predict(net, inputs, samples=0).log_probs, targets)

    for place in [(0, 0, 1, 2), (0, 0, 4, 4), (1, 0, 3, 6), (1, 0, 6, 1)]:
        step = torch.zeros_like(x)
        step[place] = 1e-6
        difference = loss(x + step) - loss(x - step)
        assert abs(difference) > 1e-12
        assert float(found[place]) == math.copysign(1, difference)


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_the_direction_is_that_of_the_plain_gradient(pixels: bool) -> None:
    data, net = made_up(pixels=pixels), network("analytic", "bayes", pixels=pixels).double().eval()
    x, targets = data.standardized(data.test.images).double().requires_grad_(), data.test.targets
    loss = nn.functional.cross_entropy(net(x), targets, ignore_index=IGNORE, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, x)
    clear = (gradient.abs() > 1e-9) | (gradient == 0)  # the strided convolution leaves out the last row
    assert float(clear.double().mean()) > 0.99
    assert torch.equal(gradient_sign(net, x.detach(), targets)[clear], gradient.sign()[clear])


def test_pixels_that_do_not_count_do_not_steer_the_attack() -> None:
    data, net = made_up(pixels=True), network("weight", "bayes", pixels=True)
    x, targets = data.standardized(data.test.images), data.test.targets.clone()
    targets[3] = IGNORE
    targets[4, :, 4:] = IGNORE
    found = gradient_sign(net, x, targets)
    assert bool((found[3] == 0).all())
    assert bool((found[4, :, :, 6:] == 0).all())  # two convolutions of 3x3 reach two pixels
    assert bool((found[4, :, :, :5] != 0).any())


def test_an_attack_of_draws_uses_the_gradient_of_the_means() -> None:
    data, net = made_up(), network("analytic", "bayes")
    x, targets = data.standardized(data.test.images), data.test.targets
    ((_, found),) = attack_curve(net, data, "test", (0.2,), samples=6)
    attacked = x + 0.2 * gradient_sign(net, x, targets)
    expected = bayesnorm.predict(net, attacked, samples=6).log_probs
    assert found.nll == pytest.approx(nll(expected, targets), rel=1e-6)


def test_a_small_attack_hurts_more_than_noise_of_the_same_size() -> None:
    """To first order the attack adds eps * |gradient|_1 to the loss; no other change of that size adds more."""
    data, net = made_up(), network("weight", "bayes")
    eps = 1e-2
    ((_, plain), (_, attacked)) = attack_curve(net, data, "test", (0, eps))
    ((_, noisy),) = noise_curve(net, data, "test", (eps,))
    x, targets = data.standardized(data.test.images).requires_grad_(), data.test.targets
    loss = nn.functional.cross_entropy(net.eval()(x), targets)
    slope = float(torch.autograd.grad(loss, x)[0].abs().sum())
    assert attacked.nll - plain.nll == pytest.approx(eps * slope, rel=0.1)
    assert abs(noisy.nll - plain.nll) < attacked.nll - plain.nll


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("norm", "scale", "samples"), [("batch", "point", 0), ("weight", "bayes", 3)])
def test_the_network_is_left_as_it_was(curve, norm: str, scale: str, samples: int) -> None:
    data, net = made_up(), network(norm, scale).train()
    net[1].eval()
    modes, before = [module.training for module in net.modules()], state(net)
    random = torch.get_rng_state()
    curve(net, data, "test", (0, 0.1), samples)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert all(p.requires_grad for p in net.parameters())


def test_modes_come_back_after_an_error_and_under_no_grad() -> None:
    data, net = made_up(), network("weight", "bayes").train()
    with pytest.raises(RuntimeError, match="out of bounds"):
        gradient_sign(net, data.standardized(data.test.images), data.test.targets + 7)
    assert all(module.training for module in net.modules())
    with torch.no_grad():
        found = gradient_sign(net, data.standardized(data.test.images), data.test.targets)
    assert not found.requires_grad
    assert bool((found != 0).any())


def test_a_network_that_begins_in_place() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Flatten(), nn.Linear(4, 2))
    x, targets = torch.randn(3, 1, 2, 2), torch.tensor([0, 1, 0])
    before = x.clone()
    found = gradient_sign(net, x, targets)
    assert torch.equal(x, before)
    expected = (net[2].weight[1] - net[2].weight[0]).sign() * torch.tensor([1.0, -1.0, 1.0]).view(-1, 1)
    assert torch.equal(found.flatten(1), expected)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("strengths", [(), (-0.1,), (math.nan,), (0.1, math.inf)])
def test_strengths_that_are_none(curve, strengths: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="strengths"):
        curve(network("weight"), made_up(), "test", strengths)


def test_a_network_that_returns_no_tensor() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(ValueError, match="returned tuple"):
        gradient_sign(Two(), torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64))
