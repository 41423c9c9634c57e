"""Point, noise and Bayes: the form of each, its law under sampling, its KL divergence."""

import itertools
import math

import pytest
import torch
from members import (
    NORMS,
    build,
    clamped_moments,
    distance,
    inputs,
    layers,
    mean_agrees,
    perturb_,
    quantiles,
    training_draws,
    variance_agrees,
)
from scipy import integrate, stats  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import bayesnorm
from bayesnorm import scales
from bayesnorm.scales.bayes import V_PRIOR, kl_log_uniform, kl_normal, log_rho, rho, rho_inverse

D = torch.float64
SECOND, FOURTH = clamped_moments()
DRAWS = 40_000
EULER = 0.57721566490153286
LOG_UNIFORM_BOUND = 0.0095  # measured: .0094 at alpha = .03 with the published constants (docs/log.md)
RANDOM = {
    "noise": bayesnorm.Noise(sigma_u=0.2, sigma_v=0.3),
    "bayes": bayesnorm.Bayes(sigma_init=0.3),
    "per_layer": bayesnorm.Bayes(sigma_init=0.3, per_layer_variance=True),
    "stochastic_bias": bayesnorm.Bayes(sigma_init=0.2, stochastic_bias=True),
}


def one_layer(norm: str, spec: object) -> nn.Module:
    """A linear layer with random s, b and variances."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(D)
    net = perturb_(bayesnorm.convert(plain, norm=norm, scale=spec, preserve=False))
    with torch.no_grad():
        for name in ("u", "v"):
            if hasattr(net[0].scale, name):
                getattr(net[0].scale, name).add_(0.3 * torch.rand(getattr(net[0].scale, name).shape))
        if hasattr(net[0].scale, "sigma_u"):
            net[0].scale.sigma_u.mul_(0.8 + 0.4 * torch.rand(4))
            net[0].scale.sigma_v.mul_(0.8 + 0.4 * torch.rand(4))
    return net


def normalized(net: nn.Module, x: Tensor) -> Tensor:
    """z, from the evaluation output."""
    s, b = net[0].scale.s.detach(), net[0].scale.b.detach()
    y = net.eval()(x).detach()
    net.train()
    return y / s - b if is_inside(net) else (y - b) / s


def standardized(net: nn.Module, x: Tensor) -> Tensor:
    """z of batch norm in training mode: the response of unit vectors, standardized over the batch."""
    response = x @ (net[0].weight / net[0].weight.norm(dim=1, keepdim=True)).T
    return (response - response.mean(0)) / (response.var(0, correction=0) + net[0].norm.eps).sqrt()


def is_inside(net: nn.Module) -> bool:
    spec = getattr(net[0].scale, "spec", None)
    return spec is not None and not spec.stochastic_bias


def deviations(net: nn.Module) -> tuple[Tensor, Tensor]:
    """Std of U (of S for the plain Bayes scale) and of V, per channel."""
    scale = net[0].scale
    if hasattr(scale, "sigma_u"):
        return scale.sigma_u, scale.sigma_v
    sigma = torch.where(scale.u < 0, scale.u.exp(), 1 + scale.u).detach().expand(4)
    if scale.spec.stochastic_bias:
        return sigma, torch.where(scale.v < 0, scale.v.exp(), 1 + scale.v).detach().expand(4)
    return sigma, torch.zeros(4, dtype=D)


# Form


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", RANDOM)
def test_sampled_output_is_the_formula_of_its_draws(norm, name):
    """``(z + b) S``; ``(z + V) U s + b`` for noise and the stochastic bias."""
    net = one_layer(norm, RANDOM[name])
    x = torch.randn(50, 3, dtype=D, generator=torch.Generator().manual_seed(1))
    z = standardized(net, x) if norm == "batch" else normalized(net, x)
    draws = training_draws(net, net[0], len(x))
    s, b = net[0].scale.s.detach(), net[0].scale.b.detach()
    first, second = deviations(net)
    if is_inside(net):
        expected = (z + b) * (s + first * draws)
    else:
        u, v = draws.chunk(2, 1)
        expected = (z + second * v) * (1 + first * u) * s + b
    y = net.train()(x)
    assert distance(y, expected) < 1e-12
    assert distance(net(x), expected) > 0.05  # the next call draws anew


@pytest.mark.parametrize("norm", NORMS)
def test_point_scale_is_the_same_in_both_modes_up_to_the_norm(norm):
    net = one_layer(norm, "point")
    x = torch.randn(50, 3, dtype=D, generator=torch.Generator().manual_seed(1))
    z = standardized(net, x) if norm == "batch" else normalized(net, x)
    assert distance(net(x), z * net[0].scale.s + net[0].scale.b) < 1e-10


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_mean_and_variance_under_sampling_are_the_closed_form_and_a_tenth_more_is_noticed(norm, name):
    net = one_layer(norm, RANDOM[name])
    row = torch.randn(1, 3, dtype=D, generator=torch.Generator().manual_seed(2))
    y = net.train()(row.expand(DRAWS, -1)).detach()
    z = normalized(net, row)[0]
    s, b = net[0].scale.s.detach(), net[0].scale.b.detach()
    first, second = deviations(net)
    mean = (z + b) * s if is_inside(net) else z * s + b
    if is_inside(net):
        var, kurtosis = (z + b) ** 2 * first**2 * SECOND, torch.tensor(FOURTH / SECOND**2)
    else:
        var = s**2 * (z**2 * first**2 * SECOND + second**2 * SECOND * (1 + first**2 * SECOND))
        xi = quantiles(400)
        value = (z.view(-1, 1, 1) + second.view(-1, 1, 1) * xi) * (1 + first.view(-1, 1, 1) * xi.view(-1, 1))
        centered = value - z.view(-1, 1, 1)
        kurtosis = centered.pow(4).mean((1, 2)) / centered.pow(2).mean((1, 2)) ** 2
    assert mean_agrees(y, mean, var)
    assert variance_agrees(y, var, kurtosis)
    assert not mean_agrees(y, 1.1 * mean, var)
    assert not variance_agrees(y, 1.1 * var, kurtosis)
    assert not variance_agrees(y, var / 1.1, kurtosis)


def test_twins_every_sigma_a_tenth_larger_is_noticed():
    row = torch.randn(1, 3, dtype=D, generator=torch.Generator().manual_seed(2))
    for name in ("noise", "bayes"):
        net = one_layer("weight", RANDOM[name])
        y = net(row.expand(DRAWS, -1)).detach()
        reference = y.var(0)
        kurtosis = ((y - y.mean(0)) ** 4).mean(0) / reference**2
        with torch.no_grad():
            if name == "noise":
                net[0].scale.sigma_u.mul_(1.1)
                net[0].scale.sigma_v.mul_(1.1)
            else:
                net[0].scale.u.add_(math.log(1.1))
        net.noise_step.fill_(5)
        assert not variance_agrees(net(row.expand(DRAWS, -1)).detach(), reference, kurtosis)


@pytest.mark.parametrize("name", RANDOM)
def test_evaluation_uses_the_means_and_sampling_draws_and_restores(name):
    net, x = build("analytic", RANDOM[name]).eval(), inputs()
    mean = net(x)
    assert torch.equal(mean, net(x))
    step = net.noise_step.clone()
    with bayesnorm.sampling(net):
        first, second = net(x), net(x)
    assert distance(first, mean) > 1e-3
    assert distance(second, first) > 1e-3
    assert torch.equal(net(x), mean)
    assert torch.equal(net.noise_step, step)
    with pytest.raises(RuntimeError, match="inside"), bayesnorm.sampling(net):
        raise RuntimeError("inside")
    assert torch.equal(net(x), mean)


def test_moments_handed_on_are_those_of_the_mean_scales():
    for spec, inside in ((bayesnorm.Point(), False), (RANDOM["noise"], False), (RANDOM["bayes"], True)):
        scale = one_layer("analytic", spec)[0].scale
        mean, var = scale.output_moments()
        assert torch.equal(mean, scale.b * scale.s if inside else scale.b)
        assert torch.equal(var, scale.s**2)


# rho


def test_rho_has_derivatives_of_sigma_and_log_sigma_in_zero_one():
    u = torch.cat([torch.linspace(-20, 20, 4001, dtype=D), torch.tensor([-700.0, 1e3, 1e8], dtype=D)]).requires_grad_()
    (slope,) = torch.autograd.grad(rho(u).sum(), u)
    (relative,) = torch.autograd.grad(rho(u).log().sum(), u)
    (same,) = torch.autograd.grad(log_rho(u).sum(), u)
    for derivative in (slope, relative, same):
        assert ((derivative > 0) & (derivative <= 1 + 1e-12)).all()
    assert torch.allclose(relative, same, rtol=1e-12)
    assert torch.allclose(log_rho(u), rho(u).log(), rtol=1e-12, atol=1e-14)
    assert torch.allclose(rho_inverse(rho(u))[:4001], u[:4001], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_and_small_u_give_no_nan(dtype):
    u = torch.tensor([-1e4, -200.0, -10.0, -0.0, 0.0, 88.0, 1e3, 1e6], dtype=dtype, requires_grad=True)
    mean = torch.ones_like(u)
    for value in (rho(u), log_rho(u), kl_normal(mean, u, 10.0), kl_log_uniform(mean, u)):
        (gradient,) = torch.autograd.grad(value.sum(), u)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


# KL divergence


def scale_of(channels: int = 6, **options: object) -> scales.BayesScale:
    generator = torch.Generator().manual_seed(3)
    scale = scales.BayesScale(channels, bayesnorm.Bayes(**options), dtype=D)
    with torch.no_grad():
        for parameter in scale.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=D, generator=generator))
        scale.s.abs_()
        scale.u[0] = 1.7  # the linear branch of rho
    return scale


def sigma_of(u: Tensor) -> Tensor:
    return torch.where(u < 0, u.exp(), 1 + u)


@pytest.mark.parametrize("prior", [10.0, 0.5])
@pytest.mark.parametrize("per_layer", [False, True])
def test_kl_is_that_of_torch_distributions_summed(prior, per_layer):
    scale = scale_of(prior=prior, per_layer_variance=per_layer)
    q = Normal(scale.s, sigma_of(scale.u).expand(6))
    expected = kl_divergence(q, Normal(torch.ones(6, dtype=D), prior)).sum()
    assert abs(scale.kl() - expected) <= 1e-12 * expected
    assert scale.u.numel() == (1 if per_layer else 6)
    with torch.no_grad():
        scale.u.add_(0.1)
    assert abs(scale.kl() - expected) > 1e-3


@pytest.mark.parametrize("per_layer", [False, True])
def test_kl_of_the_stochastic_bias_is_that_of_both_posteriors(per_layer):
    scale = scale_of(stochastic_bias=True, prior=2.0, per_layer_variance=per_layer)
    one = torch.ones(6, dtype=D)
    expected = kl_divergence(Normal(one, sigma_of(scale.u).expand(6)), Normal(one, 2.0)).sum()
    expected = expected + kl_divergence(Normal(0 * one, sigma_of(scale.v).expand(6)), Normal(0 * one, 2.0)).sum()
    assert abs(scale.kl() - expected) <= 1e-12 * expected


@pytest.mark.parametrize("per_layer", [False, True])
def test_the_log_uniform_prior_of_a_stochastic_bias_is_one_of_the_factor_of_the_scale(per_layer):
    """Of mean 1, whatever the scale is; there is no such prior of the additive part, whose mean is 0."""
    scale = scale_of(stochastic_bias=True, prior="log-uniform", per_layer_variance=per_layer)
    one = torch.ones(6, dtype=D)
    expected = kl_log_uniform(one, scale.u).sum()
    expected = expected + kl_divergence(Normal(0 * one, sigma_of(scale.v).expand(6)), Normal(0 * one, V_PRIOR)).sum()
    assert abs(scale.kl() - expected) <= 1e-12 * expected


def test_kl_of_a_network_is_the_sum_over_channels_and_layers():
    net = build("analytic", "bayes", dtype=D)
    parts = [
        kl_divergence(Normal(layer.scale.s, sigma_of(layer.scale.u)), Normal(torch.ones_like(layer.scale.s), 10.0))
        for layer in layers(net)
    ]
    expected = torch.cat(parts).sum()
    assert abs(bayesnorm.kl(net) - expected) <= 1e-12 * expected
    assert bayesnorm.kl(net).dtype == D
    assert bayesnorm.kl(net).dim() == 0


def log_uniform_by_integration(alpha: float) -> float:
    """``E log|1 + sqrt(alpha) xi| - 1/2 log alpha - E log|xi|``: the divergence, zero in the limit of large alpha."""
    root = math.sqrt(alpha)

    def density(x: float) -> float:
        return float(stats.norm.pdf((x - 1) / root) / root)

    far = 1 + 40 * root
    points = [p for p in (1 - 6 * root, 1 - root, 1.0, 1 + root, 1 + 6 * root) if abs(p) < far]
    value = 0.0
    cuts = sorted({-far + 2, 0.0, far, *points})
    for low, high in itertools.pairwise(cuts):
        value += integrate.quad(lambda x: math.log(abs(x) + 1e-300) * density(x), low, high, limit=200)[0]
    return value - 0.5 * math.log(alpha) + 0.5 * (EULER + math.log(2))


def test_log_uniform_kl_is_within_its_bound_of_numerical_integration():
    alphas = [1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 4.0, 10.0, 100.0, 1e4]
    u = rho_inverse(torch.tensor(alphas, dtype=D).sqrt() * 2)
    approximate = kl_log_uniform(torch.full((len(alphas),), 2.0, dtype=D), u)
    exact = torch.tensor([log_uniform_by_integration(alpha) for alpha in alphas], dtype=D)
    assert (approximate - exact).abs().max() < LOG_UNIFORM_BOUND
    assert (kl_log_uniform(torch.full((len(alphas),), 2.2, dtype=D), u) - exact).abs().max() > 0.05  # twin


def test_log_uniform_kl_depends_on_the_ratio_alone_and_is_positive():
    mean, sigma = torch.tensor([0.1, 1.0, 5.0], dtype=D), torch.tensor([0.03, 0.2, 4.0], dtype=D)
    value = kl_log_uniform(mean, rho_inverse(sigma))
    assert torch.allclose(kl_log_uniform(7 * mean, rho_inverse(7 * sigma)), value, rtol=1e-12)
    assert (value > 0).all()


@pytest.mark.parametrize("prior", [10.0, 0.5, "log-uniform"])
@pytest.mark.parametrize("stochastic_bias", [False, True])
@pytest.mark.parametrize("per_layer", [False, True])
def test_gradcheck_of_the_kl(prior, stochastic_bias, per_layer):
    scale = scale_of(prior=prior, stochastic_bias=stochastic_bias, per_layer_variance=per_layer)
    names = [name for name, _ in scale.named_parameters()]

    class Divergence(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = scale

        def forward(self):
            return self.scale.kl()

    def function(*parameters: Tensor) -> Tensor:
        named = {f"scale.{name}": p for name, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Divergence(), named, ())

    assert torch.autograd.gradcheck(function, tuple(p.detach().clone().requires_grad_() for p in scale.parameters()))


# Options


def test_one_variance_per_layer_draws_per_channel_with_one_sigma():
    net = one_layer("weight", RANDOM["per_layer"])
    net(torch.randn(4, 3, dtype=D)).sum().backward()
    assert net[0].scale.u.shape == (1,)
    assert net[0].scale.u.grad.isfinite().all()
    posterior = bayesnorm.posterior(net)["0"]
    assert posterior.mean.shape == posterior.sigma.shape == (4,)
    assert (posterior.sigma == posterior.sigma[0]).all()


@pytest.mark.parametrize("name", RANDOM)
def test_posterior_is_mean_and_deviation_of_the_scale(name):
    net = one_layer("weight", RANDOM[name])
    first, _ = deviations(net)
    posterior = bayesnorm.posterior(net)["0"]
    s = net[0].scale.s.detach()
    assert torch.equal(posterior.mean, s)
    assert torch.allclose(posterior.sigma, first if is_inside(net) else first * s, rtol=1e-12)
    assert not posterior.sigma.requires_grad


@pytest.mark.parametrize("name", RANDOM)
def test_the_noise_of_a_scale_that_changed_its_sign_is_not_negative(name):
    net = one_layer("weight", RANDOM[name])
    before = bayesnorm.posterior(net)["0"]
    with torch.no_grad():
        net[0].scale.s[0] *= -1
        net[0].scale.s[1] = 0
    after = bayesnorm.posterior(net)["0"]
    assert after.mean[0] == -before.mean[0]
    assert torch.equal(after.sigma[0], before.sigma[0])
    assert torch.equal(after.relative[0], before.relative[0])
    assert torch.isfinite(after.relative).all()
    assert (after.relative >= 0).all()


@pytest.mark.parametrize("sigma", [0.01, 0.1, 2.0])
def test_sigma_starts_relative_to_the_scale(sigma):
    net = build("analytic", bayesnorm.Bayes(sigma_init=sigma))
    for posterior in bayesnorm.posterior(net).values():
        assert torch.allclose(posterior.relative, torch.full_like(posterior.mean, sigma), rtol=1e-4)


def test_one_sigma_of_all_channels_starts_relative_to_their_root_mean_square():
    scale = scales.BayesScale(2, bayesnorm.Bayes(sigma_init=0.1, per_layer_variance=True), dtype=D)
    scale.set_(torch.tensor([1.0, 7.0], dtype=D), torch.zeros(2, dtype=D))
    assert scale.spread().tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: bayesnorm.Bayes(prior=-1.0), r"prior=-1\.0"),
        (lambda: bayesnorm.Bayes(prior="normal"), "normal"),
        (lambda: bayesnorm.Bayes(sigma_init=0.0), r"sigma_init=0\.0"),
        (lambda: bayesnorm.Bayes(floor=0.0), r"floor=0\.0"),
        (lambda: bayesnorm.Noise(sigma_u=-0.1), r"sigma_u=-0\.1"),
        (lambda: bayesnorm.Noise(sigma_v=float("nan")), "sigma_v=nan"),
        (lambda: scales.parse("gauss"), "gauss"),
    ],
)
def test_wrong_option_is_refused_with_its_value(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
