"""The softmax of independent normals against Monte Carlo, the logistic function and a finer sum."""

import pytest
import torch

from bayesnorm.moments import gaussian, softmaxes

DRAWS = 20_000


def normal(*size, seed=0):
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def entries(n, std, spread):
    var = std**2 * (0.5 + torch.rand(4, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)))
    return spread * normal(4, n, seed=n), var


def drawn(mean, var, f):
    return f(mean + var.sqrt() * normal(DRAWS, *mean.shape, seed=2))


@pytest.mark.parametrize("std", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("n", [2, 5, 16])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_mean_and_variance_are_those_of_draws(n, spread, std):
    """Within five standard errors, of which the one of the variance follows from the fourth moment of the draws."""
    mean, var = entries(n, std, spread)
    y = drawn(mean, var, lambda x: x.softmax(-1))
    got = softmaxes.softmax(mean, var, -1)
    center, width = y.mean(0), y.var(0)
    assert ((got[0] - center).abs() < 5 * (width / DRAWS).sqrt()).all()
    fourth = (y - center).pow(4).mean(0)
    assert ((got[1] - width).abs() < 5 * ((fourth - width**2) / DRAWS).sqrt()).all()


@pytest.mark.parametrize("std", [0.01, 1.0, 3.0])
def test_two_entries_are_a_logistic_function_of_their_difference(std):
    mean, var = normal(6, 2), std**2 * (0.5 + normal(6, 2, seed=1) ** 2).clamp_max(1)
    got = softmaxes.softmax(mean, var, 1)
    difference, total = mean[:, 0] - mean[:, 1], var.sum(1)
    expected = gaussian.quadrature(torch.sigmoid, difference, total, nodes=401)
    torch.testing.assert_close([t[:, 0] for t in got], list(expected), rtol=2e-5, atol=1e-12)
    torch.testing.assert_close(got[1][:, 1], got[1][:, 0], rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize(("std", "tolerance"), [(0.1, 1e-6), (1.0, 1e-5), (3.0, 1e-4), (5.0, 3e-3)])
def test_finer_sums_change_little(monkeypatch, std, tolerance):
    mean, var = entries(16, std, 2.0)
    got = softmaxes.softmax(mean, var, -1)
    monkeypatch.setattr(softmaxes, "_OUTER", 400)
    monkeypatch.setattr(softmaxes, "_INNER", 401)
    finer = softmaxes.softmax(mean, var, -1)
    for one, other in zip(got, finer, strict=True):
        assert ((one - other).abs().amax(-1) < tolerance * other.amax(-1)).all()


def test_constants_and_shifts():
    mean = normal(3, 7)
    zero = torch.zeros_like(mean)
    torch.testing.assert_close(softmaxes.softmax(mean, zero, 1), (mean.softmax(1), zero))
    shifted = softmaxes.softmax(mean + 500.0, zero + 0.7, 1)
    torch.testing.assert_close(shifted, softmaxes.softmax(mean, zero + 0.7, 1))
    torch.testing.assert_close(shifted[0].sum(1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(softmaxes.softmax(mean[:, :1], zero[:, :1] + 1, 1), (zero[:, :1] + 1, zero[:, :1]))


def test_small_variances_are_not_lost():
    """To first order the variance is ``p_k^2 ((1 - 2 p_k) v_k + sum_j p_j^2 v_j)``."""
    mean, var = normal(3, 7), 1e-10 * (1 + normal(3, 7, seed=1) ** 2)
    p = mean.softmax(1)
    expected = p**2 * ((1 - 2 * p) * var + (p**2 * var).sum(1, keepdim=True))
    torch.testing.assert_close(softmaxes.softmax(mean, var, 1)[1], expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("far", [30.0, 1e3, 1e6])
def test_entries_far_apart_and_wide_stay_finite(far):
    mean, var = torch.tensor([0.0, far, -far, 1.0]).requires_grad_(), torch.tensor([1.0, far, 0.0, far**2])
    got = softmaxes.softmax(mean, var.requires_grad_(), 0)
    assert all(t.isfinite().all() for t in (*got, *torch.autograd.grad(sum(t.sum() for t in got), (mean, var))))
    torch.testing.assert_close(got[0].sum(), torch.tensor(1.0))
    assert (got[1] >= 0).all()
    assert (got[1] <= 1).all()


def test_copies_are_entries_repeated():
    mean, var = entries(3, 1.0, 1.0)
    got = softmaxes.softmax(mean, var, -1, copies=4)
    repeated = softmaxes.softmax(mean.repeat(1, 4), var.repeat(1, 4), -1)
    torch.testing.assert_close(got, tuple(t[:, :3] for t in repeated))


def test_many_entries_are_summed_in_parts(monkeypatch):
    mean, var = entries(9, 1.0, 1.0)
    whole = softmaxes.softmax(mean, var, -1)
    monkeypatch.setattr(softmaxes, "_AT_ONCE", 7)
    torch.testing.assert_close(softmaxes.softmax(mean, var, -1), whole)


@pytest.mark.parametrize("rule", [softmaxes.softmax, softmaxes.log_softmax])
def test_gradients(rule):
    inputs = (normal(2, 4).requires_grad_(), (normal(2, 4, seed=1) ** 2 + 0.1).requires_grad_())
    assert torch.autograd.gradcheck(lambda m, v: rule(m, v, 1), inputs)
    assert torch.autograd.gradgradcheck(lambda m, v: rule(m, v, 1), inputs)


@pytest.mark.parametrize(("std", "mean_bound", "var_bound"), [(0.1, 0.004, 0.05), (0.5, 0.02, 0.1), (1.0, 0.06, 0.25)])
def test_log_softmax(std, mean_bound, var_bound):
    """Coarse: absolute error of the mean, and of the log of the variance."""
    mean, var = entries(8, std, 1.0)
    y = drawn(mean, var, lambda x: x.log_softmax(-1))
    got = softmaxes.log_softmax(mean, var, -1)
    assert (got[0] - y.mean(0)).abs().max() < mean_bound
    assert (got[1] / y.var(0)).log().abs().max() < var_bound
