"""Closed forms and quadrature against Monte Carlo, dense integration and each other."""

import math

import pytest
import torch
import torch.nn.functional as F

from bayesnorm.moments import gaussian, maxima

N = 200_000
GRID = [(-2.0, 1.0), (0.0, 1.0), (0.5, 0.3), (3.0, 2.0)]
KINKED = {
    "relu": (gaussian.relu, F.relu),
    "leaky_relu": (gaussian.leaky_relu, F.leaky_relu),
    "leaky_relu_steep": (lambda m, v: gaussian.leaky_relu(m, v, 1.7), lambda x: F.leaky_relu(x, 1.7)),
    "leaky_relu_negative": (lambda m, v: gaussian.leaky_relu(m, v, -0.4), lambda x: F.leaky_relu(x, -0.4)),
    "leaky_relu_identity": (lambda m, v: gaussian.leaky_relu(m, v, 1.0), lambda x: x),
    "abs": (gaussian.abs, torch.abs),
    "hardtanh": (gaussian.hardtanh, F.hardtanh),
    "hardtanh_uneven": (lambda m, v: gaussian.hardtanh(m, v, -0.3, 2.0), lambda x: F.hardtanh(x, -0.3, 2.0)),
    "relu6": (gaussian.relu6, F.relu6),
    "hardsigmoid": (gaussian.hardsigmoid, F.hardsigmoid),
    "hardswish": (gaussian.hardswish, F.hardswish),
    "clamp_min": (lambda m, v: gaussian.clamp(m, v, min=-0.5), lambda x: x.clamp(min=-0.5)),
    "clamp_max": (lambda m, v: gaussian.clamp(m, v, max=0.5), lambda x: x.clamp(max=0.5)),
    "clamp_none": (lambda m, v: gaussian.clamp(m, v), lambda x: x),
    "elu": (gaussian.elu, F.elu),
    "elu_alpha": (lambda m, v: gaussian.elu(m, v, 0.3), lambda x: F.elu(x, 0.3)),
    "selu": (lambda m, v: gaussian.elu(m, v, 1.6732632423543772, 1.0507009873554805), F.selu),
    "celu": (lambda m, v: gaussian.elu(m, v, 2.0, 1.0, 0.5), lambda x: F.celu(x, 2.0)),
}
SMOOTH = {
    "square": (gaussian.square, torch.square),
    "exp": (lambda m, v: gaussian.exp(m / 4, v / 16), lambda x: torch.exp(x / 4)),
    "sin": (gaussian.sin, torch.sin),
    "cos": (gaussian.cos, torch.cos),
    "sigmoid": (lambda m, v: gaussian.quadrature(torch.sigmoid, m, v), torch.sigmoid),
    "tanh": (lambda m, v: gaussian.quadrature(torch.tanh, m, v, 129), torch.tanh),
    "gelu": (lambda m, v: gaussian.quadrature(F.gelu, m, v), F.gelu),
    "silu": (lambda m, v: gaussian.quadrature(F.silu, m, v), F.silu),
    "mish": (lambda m, v: gaussian.quadrature(F.mish, m, v), F.mish),
    "softplus": (lambda m, v: gaussian.quadrature(F.softplus, m, v), F.softplus),
}
ALL = KINKED | SMOOTH
names = pytest.mark.parametrize("name", ALL)


def columns(grid, dtype=torch.float64):
    return (torch.tensor(column, dtype=dtype) for column in zip(*grid, strict=True))


def normal(*size, seed=0):
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def agrees(mean, var, y, z=5.0):
    """Whether the sample ``y`` (last axis) is compatible with the moments, each within z standard errors."""
    n = y.shape[-1]
    deviation = y - y.mean(-1, keepdim=True)
    spread = (deviation.pow(4).mean(-1) - deviation.pow(2).mean(-1) ** 2).clamp_min(0).sqrt()
    mean_ok = (y.mean(-1) - mean).abs() <= z * (var / n).sqrt() + 1e-12
    var_ok = (deviation.pow(2).mean(-1) - var).abs() <= z * spread / math.sqrt(n) + 1e-12
    return mean_ok & var_ok


def sample(name):
    mean, var = columns(GRID)
    rule, f = ALL[name]
    return rule(mean, var), f(mean[:, None] + var.sqrt()[:, None] * normal(len(GRID), N))


def dense(f, mean, var, nodes=200_001):
    z = torch.linspace(-14, 14, nodes, dtype=torch.float64)
    weight = torch.exp(-z * z / 2)
    weight = weight / weight.sum()
    y = f(mean[:, None] + var.sqrt()[:, None] * z)
    new_mean = (weight * y).sum(-1)
    return new_mean, (weight * (y - new_mean[:, None]) ** 2).sum(-1)


@names
def test_monte_carlo(name):
    (mean, var), y = sample(name)
    assert agrees(mean, var, y).all()


@names
def test_monte_carlo_detects_ten_percent(name):
    (mean, var), y = sample(name)
    assert not agrees(mean + 0.1 * var.sqrt(), var, y).any()
    assert not agrees(mean, var * 1.21, y).any()
    assert not agrees(mean, var * 0.81, y).any()


def test_printed_constant_of_the_leaky_relu():
    mean, var = gaussian.leaky_relu(torch.zeros(()), torch.ones(()), 0.01)
    assert round(mean.item(), 5) == 0.39495
    assert round(var.item(), 5) == 0.34406


@pytest.mark.parametrize("name", KINKED)
def test_dense_integration(name):
    rule, f = KINKED[name]
    mean, var = columns([(m, v) for m in (-8.0, -3.0, -0.5, 0.0, 1.0, 3.0, 8.0) for v in (0.1, 1.0, 9.0)])
    expected = dense(f, mean, var)
    visible = expected[1] > 1e-20
    torch.testing.assert_close(rule(mean, var)[0], expected[0], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(rule(mean, var)[1][visible], expected[1][visible], rtol=1e-5, atol=0.0)


BOUNDS = [(4.0, 1e-11, 1e-8), (16.0, 2e-7, 2e-5), (64.0, 2e-4, 2e-3), (400.0, 4e-3, 5e-2)]


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "silu", "mish", "softplus"])
@pytest.mark.parametrize(("var", "mean_bound", "var_bound"), BOUNDS)
def test_quadrature_accuracy(name, var, mean_bound, var_bound):
    """Measured over |m| <= 6: mean within ``mean_bound`` sqrt(v), variance within a relative ``var_bound``."""
    rule, f = SMOOTH[name]
    mean, var = columns([(m / 2, var) for m in range(-12, 13)])
    expected = dense(f, mean, var, 40_001)
    got = rule(mean, var)
    assert ((got[0] - expected[0]).abs() / var.sqrt()).max() < mean_bound
    assert (got[1] / expected[1] - 1).abs().max() < var_bound


def gauss_hermite(f, mean, var, nodes):
    off = torch.arange(1, nodes, dtype=torch.float64).sqrt()
    z, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    weight = vectors[0] ** 2
    y = f(mean[:, None] + var.sqrt()[:, None] * z)
    new_mean = (weight * y).sum(-1)
    return new_mean, (weight * (y - new_mean[:, None]) ** 2).sum(-1)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "silu", "softplus"])
def test_quadrature_agrees_with_gauss_hermite(name):
    """The trapezoidal nodes give what Gauss-Hermite with 16 nodes (tanh 32) gives for v <= 4, to its own accuracy."""
    rule, f = SMOOTH[name]
    mean, var = columns([(m, v) for m in (-2.0, 0.0, 1.0) for v in (0.1, 1.0, 4.0)])
    expected = gauss_hermite(f, mean, var, 32 if name == "tanh" else 16)
    got = rule(mean, var)
    assert (got[0] - expected[0]).abs().max() < 1e-3
    assert (got[1] - expected[1]).abs().max() < 1e-2


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("std", [0.5, 1.0, 4.0])
def test_float32_has_no_cancellation(name, std):
    a = torch.arange(-12, 12.5, 0.5, dtype=torch.float64)
    mean, var = a * std, torch.full_like(a, std**2)
    for got, expected in zip(ALL[name][0](mean.float(), var.float()), ALL[name][0](mean, var), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=2e-6, atol=1e-36)


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_waves_of_small_variance(name, dtype):
    """``v' = f'^2 v + (1 - 3 f'^2) v^2 / 2 + O(v^3)``; at an extremum the second term is all there is."""
    mean = torch.tensor([-1.0, 0.0, 0.3, math.pi / 2, math.pi, 20.0], dtype=dtype)
    var = torch.full_like(mean, 1e-8)
    value, slope = (f(mean.double()) for f in ((torch.sin, torch.cos) if name == "sin" else (torch.cos, torch.sin)))
    v = var.double()
    expected = slope**2 * v + (1 - 3 * slope**2) * v**2 / 2
    new_mean, new_var = ALL[name][0](mean, var)
    assert new_var.dtype == dtype
    torch.testing.assert_close(new_var.double(), expected, rtol=2e-8 + 2 * torch.finfo(dtype).eps, atol=0.0)
    torch.testing.assert_close(new_mean.double(), value, rtol=1e-8 + torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize(("name", "sign"), [("sin", -1), ("cos", 1)])
def test_waves_of_large_variance(name, sign):
    """A quadrature of 65 nodes samples whole periods at v = 158 and 632."""
    mean, var = columns([(m, v) for m in (-2.0, 0.0, 0.5) for v in (1.0, 9.0, 158.0, 632.0, 1e6)])
    rule, f = ALL[name]
    new_mean, new_var = rule(mean, var)
    expected = f(mean) * torch.exp(-var / 2)
    torch.testing.assert_close(new_mean, expected, rtol=1e-12, atol=0.0)
    second = (1 + sign * torch.cos(2 * mean) * torch.exp(-2 * var)) / 2
    torch.testing.assert_close(new_var, second - expected**2, rtol=1e-12, atol=0.0)


def test_plain_formula_would_cancel():
    a = torch.tensor(-8.0)
    cdf, pdf = 0.5 * torch.erfc(-a / math.sqrt(2)), torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    plain = (a * a + 1) * cdf + a * pdf - (a * cdf + pdf) ** 2
    exact = gaussian.relu(a.double(), torch.ones((), dtype=torch.float64))[1]
    assert (plain / exact - 1).abs() > 1e-4
    assert (gaussian.relu(a, torch.ones(()))[1] / exact - 1).abs() < 1e-6


@names
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_variance(name, dtype):
    mean = torch.tensor([-30.0, -3.0, -1.0, 0.0, 0.5, 1.0, 3.0, 6.0], dtype=dtype, requires_grad=True)
    var = torch.zeros_like(mean, requires_grad=True)
    rule, f = ALL[name]
    new_mean, new_var = rule(mean, var)
    torch.testing.assert_close(new_mean, f(mean.double()).to(dtype), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(new_var, torch.zeros_like(new_var), rtol=0.0, atol=1e-14)
    for gradient in torch.autograd.grad((new_mean + new_var).sum(), (mean, var)):
        assert gradient.isfinite().all()


@names
def test_gradients(name):
    grid = [(-3.0, 1.0), (0.0, 1.0), (0.0, 0.2), (0.7, 0.5), (4.0, 3.0), (-9.0, 1.0), (0.5, 4.0)]
    inputs = tuple(t.requires_grad_() for t in columns(grid))
    assert torch.autograd.gradcheck(ALL[name][0], inputs)


@pytest.mark.parametrize("name", ALL)
def test_compiles_without_break(name):
    mean, var = columns(GRID, torch.float32)
    compiled = torch.compile(ALL[name][0], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(mean, var), ALL[name][0](mean, var))


PAIRS = [(0.0, 1.0, 0.0, 1.0), (-1.0, 0.5, 0.3, 2.0), (2.0, 1.0, -1.0, 0.3), (0.4, 0.2, 0.5, 0.0)]


def pair_samples():
    m1, v1, m2, v2 = (t[:, None] for t in columns(PAIRS))
    return m1 + v1.sqrt() * normal(len(PAIRS), N), m2 + v2.sqrt() * normal(len(PAIRS), N, seed=1)


@pytest.mark.parametrize(
    ("rule", "f"),
    [(maxima.maximum, torch.maximum), (gaussian.product, torch.mul)],
    ids=["maximum", "product"],
)
def test_two_variables(rule, f):
    mean, var = rule(*columns(PAIRS))
    y = f(*pair_samples())
    assert agrees(mean, var, y).all()
    assert not agrees(mean + 0.1 * var.sqrt(), var, y).any()
    assert not agrees(mean, var * 1.21, y).any()
    assert torch.autograd.gradcheck(rule, tuple(t[:3].clone().requires_grad_() for t in columns(PAIRS)))


def test_maximum_far_apart_in_float32():
    gap = torch.arange(-12.0, 13.0)
    zeros, ones = torch.zeros_like(gap), torch.ones_like(gap)
    got = maxima.maximum(gap, ones, zeros, zeros)
    expected = maxima.maximum(*(t.double() for t in (gap, ones, zeros, zeros)))
    torch.testing.assert_close(got[1].double(), expected[1], rtol=2e-6, atol=1e-36)


def test_maximum_of_constants():
    inputs = [torch.tensor(x, requires_grad=True) for x in ([1.0, 2.0, 3.0], [0.0] * 3, [3.0, 2.0, 1.0], [0.0] * 3)]
    mean, var = maxima.maximum(*inputs)
    torch.testing.assert_close(mean, torch.tensor([3.0, 2.0, 3.0]))
    torch.testing.assert_close(var, torch.zeros(3))
    assert all(g.isfinite().all() for g in torch.autograd.grad((mean + var).sum(), inputs))


@pytest.mark.parametrize(
    ("n", "mean_bound", "var_bound"), [(3, 0.02, 0.06), (4, 0.01, 0.07), (9, 0.02, 0.17), (16, 0.05, 0.30)]
)
def test_maximum_of_many(n, mean_bound, var_bound):
    """Mean off by at most ``mean_bound`` input std, variance low by at most ``var_bound``."""
    y = (0.5 + 2 * normal(N, n)).amax(-1)
    mean, var = maxima.maximum_of(*(torch.tensor(x, dtype=torch.float64) for x in (0.5, 4.0)), n)
    assert abs(mean - y.mean()) < mean_bound * 2
    assert -var_bound < var / y.var() - 1 < 0.02


def test_maximum_over_an_axis_is_the_same_tree():
    for n in (1, 2, 5, 9, 12):
        mean, var = torch.full((2, n), 0.3), torch.full((2, n), 1.7)
        got = maxima.maximum_over(mean, var, 1)
        expected = maxima.maximum_of(mean[:, 0], var[:, 0], n)
        torch.testing.assert_close(got, expected)


def test_maximum_over_different_variables():
    mean, var = torch.linspace(-1, 1, 6, dtype=torch.float64), torch.linspace(0.2, 1.5, 6, dtype=torch.float64)
    y = (mean + var.sqrt() * normal(N, 6)).amax(-1)
    got = maxima.maximum_over(mean, var, 0)
    assert abs(got[0] - y.mean()) < 0.02
    assert abs(got[1] / y.var() - 1) < 0.10
