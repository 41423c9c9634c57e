"""The law of batch norm's statistics, where it holds exactly: independent normal values."""

import dataclasses
import math

import pytest
import torch
from scipy.stats import kstwobign

from bayesnorm.bn_noise import Measured, chi
from bayesnorm.paper.fig4 import _slope, fewer_values, gaussian, independent, kolmogorov_smirnov, statistic, variance

LEVEL = 1e-3
BATCHES = 600


def test_statistic_is_n_times_the_biased_variance_over_that_of_all() -> None:
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randn(5, 1, generator=generator) for _ in range(8)]
    noise = gaussian(5, 8, seed=3)
    eps = 1e-5  # torch's, part of both variances
    sigma2 = torch.cat(batches).double().var(correction=0) + eps
    expected = [5 * (batch.double().var(correction=0) + eps) / sigma2 for batch in batches]
    assert noise.n == 5
    assert statistic(noise)[:, 0].tolist() == pytest.approx([value.item() for value in expected], rel=1e-6)


@pytest.mark.parametrize("n", [32, 128, 512])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_law_holds_for_independent_normal_input(n: int, seed: int) -> None:
    assert kolmogorov_smirnov(gaussian(n, BATCHES, seed))["p"] > LEVEL


@pytest.mark.parametrize("n", [32, 128, 512])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_law_of_ten_per_cent_more_or_fewer_values_is_refused(n: int, factor: float) -> None:
    """The test has the power to refuse it.

    The statistic has std sqrt(2n), and the mean of the other law is 0.1 n away: by d = 0.1 sqrt(n/2) std. Two normal
    laws so far apart differ by ``2 Phi(d/2) - 1`` somewhere, 0.15 for n = 32. The empirical law of B values is within
    ``1.36 / sqrt(B)`` of its own in 95 of 100 cases, and a difference above ``1.95 / sqrt(B)`` is refused at 0.001.
    """
    noise = gaussian(n, BATCHES)
    law = round(factor * n)
    apart = math.erf(abs(law - n) / math.sqrt(2 * n) / 2 / math.sqrt(2))
    assert apart > (kstwobign.isf(LEVEL) + kstwobign.isf(0.05)) / math.sqrt(BATCHES), "a power of 95 %"
    twin = dataclasses.replace(noise, n=law, u=noise.u * math.sqrt(law / n))
    assert torch.allclose(statistic(twin), statistic(noise))  # the statistic is the same, its law is not
    assert kolmogorov_smirnov(twin)["p"] < LEVEL


@pytest.mark.parametrize(("n", "copies"), [(512, 1), (512, 4), (40, 4), (8, 1)])
def test_values_that_repeat_count_once(n: int, copies: int) -> None:
    """n values of which every ``copies`` are the same: the law of n / copies holds, that of n only without copies.

    The variance of B values of excess kurtosis k has a relative error of sqrt((2 + k) / B), k = 12 / (m - 1) for
    chi-square of m - 1 degrees; the count that is taken from it has about the same.
    """
    m = n // copies
    noise = gaussian(m, BATCHES)
    values = (copies * statistic(noise)[:, 0]).tolist()  # n S^2 / sigma^2, as S is that of the values without copies
    assert independent(values, n) == pytest.approx(m, rel=5 * math.sqrt((2 + 12 / (m - 1)) / BATCHES))
    found = fewer_values(values, n)
    assert found["count"] == independent(values, n)
    assert found["p"] > LEVEL
    whole = dataclasses.replace(noise, n=n)
    assert statistic(whole)[:, 0].tolist() == pytest.approx(values)
    assert (kolmogorov_smirnov(whole)["p"] > LEVEL) == (copies == 1)


def test_the_count_solves_for_the_variance_of_the_law() -> None:
    """Two values of any mean have the variance 2 d^2 if they are 2 d apart."""
    n, m = 100, 30
    d = n * math.sqrt((m - 1) / m**2)
    assert independent([n - d, n + d], n) == pytest.approx(m)
    assert independent([0.0, 10.0 * n], n) == 2, "more than any number of values could vary"
    assert independent([3.0, 3.0, 3.0], n) is None
    assert fewer_values([3.0, 3.0, 3.0], n) == {"count": None, "statistic": None, "p": None}


def test_variance_of_the_output_is_that_of_the_model() -> None:
    """``Var U + E[U^2] Var V`` for independent U and V; a variance over B batches has a relative error of sqrt(2/B)."""
    n, batches = 64, 4000
    model = chi(n)
    expected = model.sigma_u**2 + (model.mean_u**2 + model.sigma_u**2) * model.sigma_v**2
    found = variance(gaussian(n, batches))
    tolerance = 5 * math.sqrt(2 / batches)
    assert abs(found / expected - 1) < tolerance
    assert abs(1.2 * found / expected - 1) > tolerance, "a variance that is 20 % (a std that is 10 %) off is seen"


def test_variance_averages_over_channels() -> None:
    u = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
    v = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    # Var U = 2, 0 and Var UV of (1, 3) = 2, of (0, 2) = 2
    assert variance(Measured(u, v, 4)) == pytest.approx((4 + 2) / 2)


@pytest.mark.parametrize("power", [-1.0, -0.5, 2.0])
def test_slope_is_the_power(power: float) -> None:
    x = [32, 64, 128, 1024]
    assert _slope(x, [7.0 * value**power for value in x]) == pytest.approx(power)
