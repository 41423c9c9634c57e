"""The noise of batch normalization: its model, its measurement, and setting it elsewhere."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import bayesnorm
from bayesnorm import bn_noise
from bayesnorm.layers import norm_layers


@pytest.mark.parametrize(("n", "mean", "sigma"), [(8, 1.2036, 0.389), (32, 1.0414, 0.1373), (128, 1.0099, 0.0639)])
def test_chi_gives_the_values_of_the_method_page(n: int, mean: float, sigma: float) -> None:
    found = bn_noise.chi(n)
    assert found.mean_u == pytest.approx(mean, abs=5e-5)
    assert found.sigma_u == pytest.approx(sigma, abs=5e-4 if n == 8 else 5e-5)
    assert found.sigma_v == pytest.approx(1 / math.sqrt(n), rel=1e-15)


def exact(n: int) -> tuple[float, float]:
    """Mean and std of U for even n: the ratio of Gamma functions is a rational number times sqrt(pi).

    ``Gamma(k) / Gamma(k + 1/2) = (k-1)! 4^k k! / ((2k)! sqrt(pi))`` with ``k = (n-2)/2``; pi from a series.
    """
    k = (n - 2) // 2
    ratio = Fraction(math.factorial(k - 1) * 4**k * math.factorial(k), math.factorial(2 * k))
    square = Fraction(n, 2) * ratio**2 / _pi()
    return math.sqrt(square), math.sqrt(Fraction(n, n - 3) - square)


def _pi(digits: int = 60) -> Fraction:
    def arctan(inverse: int) -> Fraction:
        return sum(
            (Fraction((-1) ** i, (2 * i + 1) * inverse ** (2 * i + 1)) for i in range(digits)), start=Fraction(0)
        )

    return 16 * arctan(5) - 4 * arctan(239)


@pytest.mark.parametrize("n", [4, 8, 100, 500, 998, 1000, 1002, 2000])
def test_chi_equals_exact_rational_arithmetic_on_both_sides_of_its_two_formulas(n: int) -> None:
    mean, sigma = exact(n)
    found = bn_noise.chi(n)
    assert found.mean_u == pytest.approx(mean, rel=1e-11)
    assert found.sigma_u == pytest.approx(sigma, rel=1e-7)


def test_chi_is_smooth_where_its_formulas_meet_and_right_for_large_n() -> None:
    below, above = bn_noise.chi(999.999), bn_noise.chi(1000.001)
    slope = 0.5 * 0.002 / 1000  # sigma_u falls like n^(-1/2)
    assert below.sigma_u / above.sigma_u - 1 == pytest.approx(slope, rel=0.05)
    for n in (1e5, 1e8, 1e12):
        found = bn_noise.chi(n)
        # Var U = 1/(2n) (1 + 23/(4n) + O(n^-2)), E U = 1 + 5/(4n) + O(n^-2)
        assert found.sigma_u * math.sqrt(2 * n) == pytest.approx(1 + 23 / (8 * n), rel=1e-8 if n == 1e5 else 1e-12)
        assert (found.mean_u - 1) * n == pytest.approx(1.25, abs=max(1e-3, n * 2e-16))


@pytest.mark.parametrize("n", [3, 2, 0, -1, float("nan")])
def test_chi_refuses_where_the_variance_is_infinite(n: float) -> None:
    with pytest.raises(ValueError, match="n > 3"):
        bn_noise.chi(n)


CHANNELS, BATCH, BATCHES = 16, 32, 300


def independent(kind: str) -> nn.Module:
    """One value per sample and channel, independent and normal behind the first layer for standard normal input."""
    torch.manual_seed(0)
    if kind == "linear":
        net = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.BatchNorm1d(CHANNELS))
        nn.init.orthogonal_(net[0].weight, gain=2.5)
    else:
        net = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1, groups=CHANNELS), nn.BatchNorm2d(CHANNELS))
    with torch.no_grad():
        net[1].weight.uniform_(0.5, 2)
        net[1].running_mean.normal_()
    return net


def batches(kind: str, count: int = BATCHES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    size = (BATCH, CHANNELS) if kind == "linear" else (BATCH // 4, CHANNELS, 2, 2)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def raw_moment(n: int, k: int) -> float:
    """``E[U^k]`` of ``U = sqrt(n) / chi_{n-1}``."""
    return (n / 2) ** (k / 2) * math.exp(math.lgamma((n - 1 - k) / 2) - math.lgamma((n - 1) / 2))


def agrees(measured: bn_noise.Measured, model: bn_noise.Chi) -> bool:
    """Pooled std of U and V and mean of U within five standard errors, that of a variance from the kurtosis."""
    count = measured.u.numel()
    one, two, three, four = (raw_moment(measured.n, k) for k in (1, 2, 3, 4))
    fourth = four - 4 * one * three + 6 * one**2 * two - 3 * one**4
    error_u = math.sqrt((fourth / (two - one**2) ** 2 - 1) / count)  # relative error of a variance
    error_v = math.sqrt(2 / (count - CHANNELS))
    return (
        abs(measured.sigma_u.square().mean() / model.sigma_u**2 - 1) < 5 * error_u
        and abs(measured.sigma_v.square().mean() / model.sigma_v**2 - 1) < 5 * error_v
        and abs(measured.u.mean() - model.mean_u) < 5 * model.sigma_u / math.sqrt(count)
    )


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("how", ["torch", "converted"])
def test_measured_noise_of_independent_normal_activations_is_that_of_the_model(kind: str, how: str) -> None:
    net = independent(kind)
    if how == "converted":
        net = bayesnorm.convert(net, norm="batch", scale="bayes")
    measured = bn_noise.measure(net, batches(kind))[{"torch": "1", "converted": "0"}[how]]
    assert measured.n == BATCH
    assert measured.u.shape == measured.v.shape == (BATCHES, CHANNELS)
    assert measured.model == bn_noise.chi(BATCH)
    assert agrees(measured, measured.model)
    for factor in (0.9, 1.1):
        mean, sigma_u, sigma_v = measured.model
        assert not agrees(measured, bn_noise.Chi(mean, factor * sigma_u, sigma_v))
        assert not agrees(measured, bn_noise.Chi(mean, sigma_u, factor * sigma_v))
        assert not agrees(measured, bn_noise.Chi(factor * mean, sigma_u, sigma_v))


def test_the_batch_variance_follows_the_chi_square_law() -> None:
    measured = bn_noise.measure(independent("linear"), batches("linear"))["1"]
    ratio = (measured.n / measured.u.square()).flatten().numpy()
    shift = (measured.v * math.sqrt(measured.n)).flatten().numpy()
    assert stats.kstest(ratio, stats.chi2(measured.n - 1).cdf).pvalue > 1e-3
    assert stats.kstest(shift, stats.norm.cdf).pvalue > 1e-3
    for factor in (0.9, 1.1):
        assert stats.kstest(factor * ratio, stats.chi2(measured.n - 1).cdf).pvalue < 1e-6
        assert stats.kstest(factor * shift, stats.norm.cdf).pvalue < 1e-2


def deep() -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(6, 5, 3),
        nn.BatchNorm2d(5, momentum=None),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(80, 7),
        nn.BatchNorm1d(7),
    )
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.weight.normal_()
                module.bias.normal_()
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return net


def images(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(6, 3, 8, 8, generator=generator) for _ in range(count)]


def test_u_and_v_are_those_of_the_definition() -> None:
    net = deep()
    measured = bn_noise.measure(net, iter(images()))
    responses = torch.stack([net[0](x) for x in images()]).double().detach()
    mu, sigma = responses.mean((0, 1, 3, 4)), (responses.var((0, 1, 3, 4), correction=0) + net[1].eps).sqrt()
    batch_mean, batch_var = responses.mean((1, 3, 4)), responses.var((1, 3, 4), correction=0) + net[1].eps
    torch.testing.assert_close(measured["1"].u, sigma / batch_var.sqrt())
    torch.testing.assert_close(measured["1"].v, (mu - batch_mean) / sigma, rtol=1e-5, atol=1e-7)
    assert [m.n for m in measured.values()] == [6 * 36, 6 * 16, 6]
    assert list(measured) == ["1", "5", "9"]


def test_torch_and_converted_networks_measure_the_same() -> None:
    net = deep()
    expected = bn_noise.measure(net, images())
    converted = bayesnorm.convert(net, norm="batch", scale="noise")
    bayesnorm.project_(converted)
    found = bn_noise.measure(converted, images())
    assert list(found) == ["0", "4", "8"]
    for (name, torchs), mine in zip(expected.items(), found.values(), strict=True):
        # A converted layer has a positive scale: it flips the response, and so V, where gamma was negative.
        flip = net.get_submodule(name).weight.sign()
        torch.testing.assert_close(mine.u, torchs.u, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.v * flip, torchs.v, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.sigma_v, torchs.sigma_v, rtol=1e-4, atol=1e-5)
        assert mine.n == torchs.n


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_measuring_changes_nothing(converted: bool, fails: bool) -> None:
    net = deep()
    net = bayesnorm.convert(net, norm="batch", scale="bayes") if converted else net
    net[4].eval()
    flags = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError):
            bn_noise.measure(net, [*images(1), torch.randn(6, 2, 8, 8)])
    else:
        assert torch.equal(torch.get_rng_state(), state)
        bn_noise.measure(net, images())
        assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in net.modules()] == flags
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert not any(module._forward_pre_hooks for module in bn_noise._batch_norms(net).values())


@pytest.mark.parametrize("how", ["torch", "converted"])
def test_u_and_v_are_those_that_training_applies(how: str) -> None:
    """``((x - mu) / sigma + V) U`` is what batch norm computes, with an eps that is not small beside the variances.

    Also with weights that do not have the length at which a network was converted.
    """
    net = independent("linear")
    net[1].eps = 0.3
    with torch.no_grad():
        net[0].weight.mul_(0.1)
        net[1].weight.fill_(1.0)
        net[1].bias.zero_()
    name, batch = "1", batches("linear", 4)
    responses = torch.stack([net[0](x) for x in batch]).double().detach()
    if how == "converted":
        net, name = bayesnorm.convert(net, norm="batch", scale="point"), "0"
        with torch.no_grad():
            net[0].weight.mul_(7.0)
    found = bn_noise.measure(net, batch)[name]
    mu, sigma = responses.mean((0, 1)), (responses.var((0, 1), correction=0) + 0.3).sqrt()
    rebuilt = ((responses - mu) / sigma + found.v[:, None]) * found.u[:, None]
    with torch.no_grad():
        trained = torch.stack([net.train()(x) for x in batch]).double()
    torch.testing.assert_close(rebuilt, trained, rtol=1e-4, atol=1e-5)


def test_a_channel_that_is_constant_in_one_batch_has_the_u_that_eps_allows() -> None:
    given = [torch.randn(8, 2, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    given[1][:, 0] = 0.5
    norm = nn.BatchNorm1d(2)
    found = bn_noise.measure(nn.Sequential(norm), given)["0"]
    spread = torch.stack(given).double().var((0, 1), correction=0)[0]
    assert float(found.u[1, 0]) == pytest.approx(float((1 + spread / norm.eps).sqrt()), rel=1e-6)


def test_a_dead_channel_has_finite_noise() -> None:
    net = independent("linear")
    with torch.no_grad():
        net[0].weight[2] = 0
    measured = bn_noise.measure(net, batches("linear", 3))["1"]
    assert measured.sigma_u.isfinite().all()
    assert measured.sigma_v.isfinite().all()
    assert torch.equal(measured.u[:, 2], torch.ones(3, dtype=torch.float64)), "batch norm leaves it as it is"
    assert torch.equal(measured.v[:, 2], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("norm", ["weight", "analytic", "batch"])
@pytest.mark.parametrize("source", ["torch", "converted"])
def test_apply_sets_the_measured_noise_per_layer_and_per_channel(norm: str, source: str) -> None:
    """Names of the convolution and of the BatchNorm behind it both find the layer."""
    net = deep()
    origin = net if source == "torch" else bayesnorm.convert(net, norm="batch", scale="point")
    measured = bn_noise.measure(origin, images())
    noisy = bayesnorm.convert(net, norm=norm, scale="noise")
    for per in ("channel", "layer"):
        bn_noise.apply_(noisy, measured, per=per)  # type: ignore[arg-type]
        for layer, found in zip(norm_layers(noisy).values(), measured.values(), strict=True):
            for buffer, value in ((layer.scale.sigma_u, found.sigma_u), (layer.scale.sigma_v, found.sigma_v)):
                expected = value if per == "channel" else value.mean().expand_as(value)
                torch.testing.assert_close(buffer.double(), expected, rtol=1e-6, atol=1e-9)


def test_applied_noise_is_drawn_with_the_measured_std() -> None:
    net = independent("linear")
    measured = bn_noise.measure(net, batches("linear"))
    noisy = bayesnorm.convert(net, norm="weight", scale="noise").train()
    bn_noise.apply_(noisy, measured, per="channel")
    x = torch.randn(1, CHANNELS).expand(20_000, CHANNELS)
    with torch.no_grad():
        sampled = noisy(x).double()
        mean = noisy.eval()(x[:1]).double()
    scale = norm_layers(noisy)["0"].scale
    s, b, sigma_u, sigma_v = (t.double().detach() for t in (scale.s, scale.b, scale.sigma_u, scale.sigma_v))
    z, clamp = (mean - b) / s, 1 - 0.00500  # variance of a draw clamped at 3
    var = s**2 * (sigma_u**2 * z**2 + sigma_v**2 + sigma_u**2 * sigma_v**2 * clamp) * clamp
    ratio = (sampled.var(0) / var).flatten().numpy()
    bound = 5 * math.sqrt(2.2 / len(x))  # kurtosis of a product of normals is a little above 3
    assert np.abs(ratio - 1).max() < bound
    assert np.abs(1.1 * ratio - 1).min() > bound


def test_errors_say_what_to_do() -> None:
    net = deep()
    measured = bn_noise.measure(net, images())
    noisy = bayesnorm.convert(net, norm="weight", scale="noise")
    with pytest.raises(ValueError, match="no batch normalization"):
        bn_noise.measure(noisy, images())
    with pytest.raises(ValueError, match="two or more batches"):
        bn_noise.measure(net, images(1))
    with pytest.raises(ValueError, match="two or more batches"):
        bn_noise.measure(net, [*images(2), images()[0][:5]])
    with pytest.raises(ValueError, match="per='sample'"):
        bn_noise.apply_(noisy, measured, per="sample")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale='noise'"):
        bn_noise.apply_(bayesnorm.convert(net, norm="weight", scale="bayes"), measured)
    with pytest.raises(ValueError, match="nothing was measured for '4'"):
        bn_noise.apply_(noisy, {"1": measured["1"]})
    with pytest.raises(ValueError, match="'4' has 5 channels"):
        bn_noise.apply_(noisy, {**measured, "5": measured["9"]})
    with pytest.raises(ValueError, match="batches"):
        bn_noise.measure(net, [])


def test_a_refused_application_changes_no_layer() -> None:
    net = deep()
    measured = bn_noise.measure(net, images())
    noisy = bayesnorm.convert(net, norm="weight", scale="noise")
    before = {name: value.clone() for name, value in noisy.state_dict().items()}
    with pytest.raises(ValueError, match="nothing was measured"):
        bn_noise.apply_(noisy, {name: measured[name] for name in ("1", "5")})
    assert all(torch.equal(noisy.state_dict()[name], value) for name, value in before.items())
