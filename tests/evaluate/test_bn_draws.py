"""Statistics of batches and of their noise: one normalization by hand, and the laws of the draws."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import bayesnorm
from bayesnorm import bn_noise
from bayesnorm.evaluate import mc_batch_norm, stochastic_batch_norm
from bayesnorm.evaluate._bn_draws import noise_draws

either = pytest.mark.parametrize("convert", [False, True], ids=["torch", "converted"])


def alone(norm: nn.BatchNorm1d, convert: bool) -> nn.Module:
    """A network of one batch norm, torch's own or converted."""
    net = nn.Sequential(norm)
    return bayesnorm.convert(net, norm="batch", scale="point") if convert else net


def normal(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


@either
def test_the_statistics_are_the_biased_ones_of_training(convert: bool) -> None:
    """Of a network that is one batch norm, by hand; of a batch of 4 the unbiased variance would be a third larger."""
    torch.manual_seed(0)
    net = alone(nn.BatchNorm1d(3), convert)
    batch, x = 2 * torch.randn(4, 3) + 1, torch.randn(6, 3)
    mean, var = batch.mean(0), batch.var(0, correction=0)
    expected = ((x - mean) / (var + 1e-5).sqrt()).log_softmax(1)
    torch.testing.assert_close(mc_batch_norm(net, x, [batch], 1), expected, rtol=1e-5, atol=1e-6)


@either
def test_noise_measured_on_a_batch_is_normalization_by_that_batch(convert: bool) -> None:
    """Of one layer whose running statistics are those of all batches together, and a small eps."""
    norm = nn.BatchNorm1d(3, eps=1e-12)
    batches = [2 * normal(8, seed) + seed for seed in (1, 2, 3)]
    together = torch.cat(batches)
    with torch.no_grad():
        norm.running_mean.copy_(together.mean(0))
        norm.running_var.copy_(together.var(0, correction=0))
    net = alone(norm, convert)
    measured = bn_noise.measure(net, batches)["0"]
    x = normal(5)
    for i, batch in enumerate(batches):
        one = bn_noise.Measured(measured.u[i : i + 1], measured.v[i : i + 1], measured.n)
        found = stochastic_batch_norm(net, x, {"0": one}, samples=2)
        torch.testing.assert_close(found, mc_batch_norm(net, x, [batch], 1), rtol=1e-4, atol=1e-5)


@either
def test_noise_of_a_channel_that_is_constant_in_a_batch(convert: bool) -> None:
    """``U = sigma / S`` has no bound, or is 0. The draw is finite: no variance is below 0, and eps is added."""
    net, x = alone(nn.BatchNorm1d(3, eps=1e-3), convert), normal(5)
    u, v = torch.tensor([[1e150, 0.0, 1.2]], dtype=torch.float64), torch.tensor([[0.3, 0.0, -0.1]])
    found = stochastic_batch_norm(net, x, {"0": bn_noise.Measured(u, v, 8)}, samples=2)
    sigma = math.sqrt(1 + 1e-3)  # running statistics 0 and 1
    expected = ((x / sigma + v) * u.clamp(max=sigma / math.sqrt(1e-3))).log_softmax(1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@either
def test_a_draw_normalizes_with_its_u_and_v(convert: bool) -> None:
    """Of a network that is one batch norm: ``((x - mu) / sigma + V) U s + b``, whatever eps."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, eps=0.1)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.copy_(torch.tensor([0.5, 0.01, 0.02, 2.0]))  # small against eps, too
        norm.weight.uniform_(0.5, 2)
    net = alone(norm, convert)
    u, v = torch.tensor([[2.0, 0.5, 1.0, 3.0]]), torch.tensor([[0.1, -0.2, 0.3, 0.0]])
    x = torch.randn(6, 4)
    z = (x - norm.running_mean) / (norm.running_var + 0.1).sqrt()
    expected = ((z + v) * u * norm.weight + norm.bias).log_softmax(1).detach()
    found = stochastic_batch_norm(net, x, {"0": bn_noise.Measured(u, v, 8)}, samples=2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


SAMPLES, CHANNELS = 4000, 5


def test_drawn_noise_of_the_chi_model_follows_its_laws() -> None:
    n = 24
    u, v = noise_draws(n, 3, CHANNELS, SAMPLES, seed=1)
    assert u.shape == v.shape == (SAMPLES, CHANNELS)
    square, shift = (n / u.square()).flatten().numpy(), (v * math.sqrt(n)).flatten().numpy()
    assert stats.kstest(square, stats.chi2(n - 1).cdf).pvalue > 1e-3
    assert stats.kstest(shift, stats.norm.cdf).pvalue > 1e-3
    for factor in (0.9, 1.1):
        assert stats.kstest(factor * square, stats.chi2(n - 1).cdf).pvalue < 1e-6
        assert stats.kstest(factor * shift, stats.norm.cdf).pvalue < 1e-3
    model, count = bn_noise.chi(n), SAMPLES * CHANNELS
    assert abs(float(u.mean()) - model.mean_u) < 5 * model.sigma_u / math.sqrt(count)
    # Moments of U = sqrt(n) / chi_{n-1}: E[chi^-k] = 2^{-k/2} Gamma((n - 1 - k) / 2) / Gamma((n - 1) / 2).
    mean, second, third, fourth = (
        math.exp(k / 2 * math.log(n / 2) + math.lgamma((n - 1 - k) / 2) - math.lgamma((n - 1) / 2)) for k in range(1, 5)
    )
    assert mean == pytest.approx(model.mean_u, rel=1e-12)
    variance = second - mean**2
    central = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
    error = math.sqrt((central - variance**2) / count)
    assert abs(float(u.var()) - variance) < 5 * error
    assert abs(1.1 * float(u.var()) - variance) > 5 * error
    assert abs(float(v.mean())) < 5 * model.sigma_v / math.sqrt(count)
    assert abs(float(v.var()) / model.sigma_v**2 - 1) < 5 * math.sqrt(2 / count)


def test_draws_of_channels_layers_u_and_v_are_independent() -> None:
    columns = torch.cat([t for layer in (0, 1) for t in noise_draws(24, layer, CHANNELS, SAMPLES)], 1)
    correlations = torch.corrcoef(columns.T) - torch.eye(columns.size(1), dtype=torch.float64)
    assert float(correlations.abs().max()) < 5 / math.sqrt(SAMPLES)
    assert not torch.equal(noise_draws(24, 0, 2, 9, seed=0)[0], noise_draws(24, 0, 2, 9, seed=1)[0])
    assert torch.equal(noise_draws(24, 0, 2, 9)[1], noise_draws(24, 0, 2, 20)[1][:9])


def test_drawn_measured_noise_has_the_measured_moments() -> None:
    net = nn.Sequential(nn.Linear(3, CHANNELS), nn.BatchNorm1d(CHANNELS))
    measured = bn_noise.measure(net, [normal(8, seed) for seed in range(12)])["1"]
    u, v = noise_draws(measured, 0, CHANNELS, SAMPLES)
    for drawn, from_batches in ((u, measured.u), (v, measured.v)):
        mean, std = from_batches.mean(0), from_batches.std(0, correction=0)
        assert bool(((drawn.mean(0) - mean).abs() < 5 * std / math.sqrt(SAMPLES)).all())
        fourth = ((from_batches - mean) ** 4).mean(0) / std**4
        error = ((fourth - 1) / SAMPLES).sqrt()
        assert bool(((drawn.var(0) / std**2 - 1).abs() < 5 * error).all())
    pairs = {tuple(row) for row in torch.cat([measured.u, measured.v], 1).tolist()}
    assert {tuple(row) for row in torch.cat([u, v], 1).tolist()} == pairs  # U and V of a draw are of one batch
