"""Prediction by moments against closed forms and against many draws."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import bayesnorm
from bayesnorm import _linearize
from bayesnorm._linearize import gaussian_outputs, plan, spread_out
from bayesnorm._sampling import runtimes
from bayesnorm.scales import Bayes


def converted(*layers, norm="weight", sigma=0.05, **options):
    torch.manual_seed(0)
    spec = Bayes(sigma_init=sigma, **options)
    return bayesnorm.convert(nn.Sequential(*layers), norm=norm, scale=spec, preserve=False).eval()


def small_cnn(norm="analytic", sigma=0.05):
    conv = [nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(0.01), nn.Conv2d(8, 8, 3, 2), nn.LeakyReLU(0.01)]
    return converted(*conv, nn.Conv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), norm=norm, sigma=sigma)


def outputs(net, x, inflation=None):
    networks = runtimes(net)
    return gaussian_outputs(net, networks, x, plan(net, networks, x[:1], inflation))


def draws(net, x, count):
    with torch.no_grad(), bayesnorm.sampling(net):
        return torch.stack([net(x) for _ in range(count)]).double()


def test_one_layer_is_exact():
    """y = (z + b) S: the outputs are independent, with std sigma |z + b|."""
    net = converted(nn.Linear(5, 3), sigma=0.3)
    nn.init.normal_(net[0].scale.b)
    x = torch.randn(7, 5)
    mean, covariance = outputs(net, x)
    inner = mean / net[0].scale.s
    expected = torch.diag_embed((net[0].scale.spread() * inner).square())
    torch.testing.assert_close(mean, net(x))
    torch.testing.assert_close(covariance, expected.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("stochastic_bias", [False, True])
def test_covariance_is_that_of_many_draws(stochastic_bias, monkeypatch):
    """All scales differentiated, small sigma: first order is all there is, up to 5 standard errors and 2 %."""
    monkeypatch.setattr(_linearize, "COST", 1e9)
    net = converted(nn.Linear(6, 16), nn.LeakyReLU(0.01), nn.Linear(16, 4), sigma=0.02, stochastic_bias=stochastic_bias)
    x = torch.randn(5, 6)
    _, covariance = outputs(net, x)
    count = 4000
    measured = draws(net, x, count).var(0)
    predicted = covariance.diagonal(dim1=1, dim2=2).double()
    # The draws are clamped to +-3, which takes half a percent off their variance.
    assert ((measured / predicted - 0.995).abs() < 5 * (2 / count) ** 0.5 + 0.02).all()


def test_noise_adds_in_amplitude_over_space(monkeypatch):
    """Pooling over positions does not divide the variance of a scale, which is one draw for all of them."""
    monkeypatch.setattr(_linearize, "COST", 1e9)
    net, x = small_cnn(), torch.randn(6, 1, 9, 9)
    _, covariance = outputs(net, x)
    measured = draws(net, x, 3000).var(0)
    ratio = covariance.diagonal(dim1=1, dim2=2).double().mean() / measured.mean()
    assert 0.9 < ratio < 1.1


def test_early_scales_are_accounted_for_by_the_posterior(monkeypatch):
    net, x = small_cnn(), torch.randn(2, 1, 9, 9)
    layers = [net[0], net[2], net[4]]
    with torch.no_grad():
        for layer, sigma in zip(layers, (0.4, 0.2, 0.1), strict=True):
            layer.scale.u.fill_(torch.tensor(sigma).log())
    monkeypatch.setattr(_linearize, "COST", 1e9)
    every = plan(net, runtimes(net), x[:1], None)
    assert (every.sources, every.hidden, every.inflation) == (layers, 2, pytest.approx(1.0))
    monkeypatch.setattr(_linearize, "COST", 0.0)
    least = plan(net, runtimes(net), x[:1], None)
    assert (least.sources, least.hidden, least.inflation) == (layers[2:], 0, 1.0)
    work = [9 * 9 * 8 * 9, 4 * 4 * 8 * 72, 4 * 4 * 3 * 8]
    monkeypatch.setattr(_linearize, "COST", 3 * work[2] / sum(work))
    some = plan(net, runtimes(net), x[:1], None)
    assert (some.sources, some.hidden) == (layers[1:], 1)
    early, late = (r**2 / (1 + r**2) for r in (0.4, 0.2))
    assert some.inflation == pytest.approx((early + late) / late, rel=1e-5)
    assert plan(net, runtimes(net), x[:1], 1.5).inflation == 1.5


def test_a_channel_that_the_network_has_given_up_does_not_count(monkeypatch):
    """Its sigma / s is a hundred times that of the others, and nothing behind it listens."""
    net, x = small_cnn(), torch.randn(2, 1, 9, 9)
    monkeypatch.setattr(_linearize, "COST", 1.0)
    before = plan(net, runtimes(net), x[:1], None)
    assert (before.sources, before.hidden) == ([net[2], net[4]], 1), "the first layer is not differentiated"
    with torch.no_grad():
        net[0].scale.s[0] /= 100
        net[2].weight[:, 0] = 0
    assert plan(net, runtimes(net), x[:1], None).inflation == before.inflation == pytest.approx(2.0)


def test_a_layer_most_of_whose_channels_are_switched_off_adds_nothing(monkeypatch):
    """Their sigma / s is a million, and their outputs are nought."""
    net, x = small_cnn(), torch.randn(2, 1, 9, 9)
    monkeypatch.setattr(_linearize, "COST", 1.0)
    with torch.no_grad():
        net[0].scale.s[:5] = 1e-8
    found = plan(net, runtimes(net), x[:1], None)
    assert (found.sources, found.inflation) == ([net[2], net[4]], pytest.approx(1.0))


def test_points_have_the_moments_that_were_asked_for():
    torch.manual_seed(0)
    mean, root = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, 4, dtype=torch.float64)
    points = spread_out(mean, root @ root.mT)
    torch.testing.assert_close(points.mean(0), mean)
    moved = points - mean
    covariance = torch.einsum("pna,pnb->nab", moved, moved) / len(points)
    torch.testing.assert_close(covariance, root @ root.mT, rtol=0.2, atol=0.5)


def test_it_is_closer_to_many_draws_than_a_single_pass():
    net, x = small_cnn(sigma=0.3), 2 * torch.randn(40, 1, 9, 9)
    many = bayesnorm.predict(net, x, samples=2000).probs
    moments = bayesnorm.predict(net, x, method="moments")
    single = bayesnorm.predict(net, x, samples=0).probs
    assert (moments.probs - many).abs().mean() < 0.75 * (single - many).abs().mean()
    assert bool((moments.mutual_info >= 0).all())
    torch.testing.assert_close(moments.probs.sum(1), torch.ones(40))
    torch.testing.assert_close(moments.probs.log(), moments.log_probs)


def test_it_changes_nothing_and_does_not_depend_on_pieces():
    net, x = small_cnn(), torch.randn(10, 1, 9, 9)
    net[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flags = [parameter.requires_grad for parameter in net.parameters()]
    whole = bayesnorm.predict(net.train(), x, method="moments").probs
    torch.testing.assert_close(bayesnorm.predict(net, x, method="moments", max_rows=3).probs, whole)
    assert net.training
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_without_noise_it_is_the_single_pass():
    x = torch.randn(4, 1, 9, 9)
    point = bayesnorm.convert(nn.Sequential(nn.Flatten(), nn.Linear(81, 3)), norm="weight", scale="point")
    torch.testing.assert_close(
        bayesnorm.predict(point, x, method="moments").probs, bayesnorm.predict(point, x, samples=0).probs
    )
    quiet = small_cnn(sigma=1e-6)
    torch.testing.assert_close(
        bayesnorm.predict(quiet, x, method="moments").probs, bayesnorm.predict(quiet, x, samples=0).probs
    )


class Pair(nn.Module):
    """Returns two tensors."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        return self.conv(x), x


def test_bad_arguments():
    net, x = small_cnn(), torch.randn(2, 1, 9, 9)
    with pytest.raises(ValueError, match="method='guess': choose 'draws' or 'moments'"):
        bayesnorm.predict(net, x, method="guess")
    with pytest.raises(ValueError, match=r"inflation=0.0: must be positive and finite"):
        bayesnorm.predict(net, x, method="moments", inflation=0.0)
    pairs = converted(Pair())
    with pytest.raises(ValueError, match=r"needs outputs \(N, classes, \*space\), the network returns tuple"):
        bayesnorm.predict(pairs, x, method="moments")


def test_no_network_is_kept_alive():
    net = small_cnn()
    bayesnorm.predict(net, torch.randn(2, 1, 6, 6), method="moments")
    alive = weakref.ref(net)
    del net
    gc.collect()
    assert alive() is None


def test_a_layer_that_was_replaced():
    net, x = converted(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(4, 5)
    bayesnorm.predict(net, x, method="moments")
    net[2] = nn.Linear(8, 6)
    found = bayesnorm.predict(net, x, method="moments")
    assert found.probs.shape == (4, 6)
    assert (found.mutual_info > 0).all()


class Sideways(nn.Module):
    """Its last layer does not reach the outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.side = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 16)

    def forward(self, x):
        hidden = self.first(x).relu()
        out = self.head(hidden)
        self.embedding = self.side(hidden)
        return out


def test_a_layer_that_does_not_reach_the_outputs():
    torch.manual_seed(0)
    whole = bayesnorm.convert(Sideways(), norm="weight", scale=Bayes(sigma_init=0.2), preserve=False).eval()
    x = torch.randn(4, 5)
    straight = copy.deepcopy(whole)
    straight.forward = lambda x: straight.head(straight.first(x).relu())
    found, expected = (bayesnorm.predict(net, x, method="moments") for net in (whole, straight))
    assert torch.equal(found.probs, expected.probs)
    assert (found.mutual_info > 0).all()


def test_in_inference_mode():
    net, x = small_cnn(), torch.randn(2, 1, 6, 6)
    expected = bayesnorm.predict(net, x, method="moments").probs
    with torch.inference_mode():
        found = bayesnorm.predict(net, x * 1, method="moments").probs
    assert torch.equal(found, expected)


class Branches(nn.Module):
    """Residual blocks, the last norm of each starting at zero as is usual."""

    def __init__(self, zeros):
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 3)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)) for _ in range(4)])
        for block in list(self.blocks)[:zeros]:
            nn.init.zeros_(block[1].weight)

    def forward(self, x):
        y = self.stem(x)
        for block in self.blocks:
            y = y + block(y).relu()
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("norm", ["batch", "weight", "analytic"])
@pytest.mark.parametrize("zeros", [1, 3, 4])
def test_branches_that_are_switched_off_add_nothing(zeros, norm, projected):
    """Their sigma / s is a division by zero, or thousands; the outputs vary as much as draws do."""
    torch.manual_seed(0)
    net, x = Branches(zeros).eval(), torch.randn(16, 1, 9, 9)
    net = bayesnorm.convert(net, norm=norm, scale=Bayes(sigma_init=0.2)).eval()
    if projected:
        bayesnorm.project_(net)
    predicted = bayesnorm.predict(net, x, method="moments").probs
    assert predicted.isfinite().all()
    drawn = bayesnorm.predict(net, x, samples=2000).probs
    assert (predicted - drawn).abs().max() < 0.02


def test_the_memory_of_the_outputs_counts(monkeypatch):
    """A thousand classes: derivatives and covariances are larger than the activations."""
    net, x = converted(nn.Linear(4, 1000)), torch.randn(64, 4)
    sizes = []
    whole = bayesnorm.predict(net, x, method="moments", max_rows=64).probs
    real = _linearize.spread_out
    monkeypatch.setattr("bayesnorm._predict.spread_out", lambda m, c: sizes.append(len(m)) or real(m, c))
    found = bayesnorm.predict(net, x, method="moments").probs
    most = max(sizes)
    assert most * 1000**2 * 4 < 5 * (24 << 20)
    assert most > 1
    assert torch.allclose(found, whole, atol=1e-6)


@pytest.mark.parametrize("method", ["draws", "moments"])
def test_predictions_leave_nothing_behind_for_a_backward_pass(method):
    net = small_cnn()
    for _ in range(3):
        bayesnorm.predict(net, torch.randn(4, 1, 9, 9), samples=2, method=method)
    assert not runtimes(net)[0].repeats.calls
