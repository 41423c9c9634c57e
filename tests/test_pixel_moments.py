"""Prediction of pixels by moments against closed forms and against many draws."""

import pytest
import torch
from scipy.stats import norm as normal
from torch import Tensor, nn

import bayesnorm
from bayesnorm._linearize import plan
from bayesnorm._modes import mode
from bayesnorm._pixel_moments import gaussian_pixels
from bayesnorm._sampling import runtimes
from bayesnorm.layers import norm_layers
from bayesnorm.models.unet import unet


def smooth(count: int, side: int) -> Tensor:
    noise = torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 3, 1, 1) * 3


def one_layer(sigma: float = 0.4) -> nn.Module:
    """Outputs that are linear in the draws."""
    torch.manual_seed(0)
    spec = bayesnorm.Bayes(sigma_init=sigma)
    return bayesnorm.convert(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), norm="weight", scale=spec).eval()


def segmenter(kind: str, sigma: float = 0.1) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    spec, x = bayesnorm.Bayes(sigma_init=sigma), smooth(2, 32)
    if kind == "unet":
        net = unet("weight", spec, width=0.0625, num_classes=3)
    else:
        layers = [nn.Conv2d(1, 8, 5, padding=2), nn.LeakyReLU(0.01), nn.Conv2d(8, 6, 5, padding=2), nn.LeakyReLU(0.01)]
        plain = nn.Sequential(*layers, nn.Conv2d(6, 3, 1), nn.LogSoftmax(1))
        stats = (torch.zeros(1), torch.ones(1))
        net = bayesnorm.convert(plain, norm="analytic", scale=spec, preserve=False, input_stats=stats)
    bayesnorm.init_from_data_(net, x)
    return net.eval(), x


@torch.no_grad()
def test_where_outputs_are_linear_in_the_draws_it_is_exact() -> None:
    """The difference of two logits is normal: E[sigmoid] by quadrature."""
    net, x = one_layer(), smooth(3, 8)
    (layer,) = norm_layers(net).values()
    out = net(x)
    spread = (out - layer.scale.offset.view(1, -1, 1, 1)) * (layer.scale.spread() / layer.scale.s).view(1, -1, 1, 1)
    mean, std = (out[:, 1] - out[:, 0]).double(), spread.double().square().sum(1).sqrt()
    nodes = torch.tensor(normal.ppf((torch.arange(4000).double() + 0.5) / 4000))
    expected = (mean[..., None] + std[..., None] * nodes).sigmoid().mean(-1)
    found = bayesnorm.predict(net, x, method="moments")
    torch.testing.assert_close(found.probs[:, 1].double(), expected, rtol=0, atol=2e-3)
    single = bayesnorm.predict(net, x, samples=0).probs[:, 1]
    assert (single - expected).abs().max() > 0.01


@torch.no_grad()
@pytest.mark.parametrize("kind", ["chain", "unet"])
def test_derivatives_are_those_of_autograd(kind: str) -> None:
    net, x = segmenter(kind)
    networks = runtimes(net)
    with mode(net, False):
        chosen = plan(net, networks, x[:1], 1.0)
        mean, jacobian = gaussian_pixels(net, networks, x, chosen)
    torch.testing.assert_close(mean, net(x), rtol=1e-4, atol=1e-4)
    sizes = [layer.columns.numel() for layer in chosen.sources]
    assert jacobian.shape == (sum(sizes), *mean.shape)
    layer, scale = chosen.sources[-1], chosen.sources[-1].scale
    before = scale.s.clone()
    scale.s += 0.05 * scale.spread()
    moved = net(x)
    scale.s.copy_(before)
    together = jacobian[-sizes[-1] :].sum(0)
    error = ((moved - mean) / 0.05 - together).norm() / together.norm()
    assert layer.columns.numel() == sizes[-1]
    assert error < 0.05


def test_it_comes_near_to_many_draws() -> None:
    net, x = segmenter("chain", 0.3)
    many, single = bayesnorm.predict(net, x, samples=1000), bayesnorm.predict(net, x, samples=0).probs
    moments = bayesnorm.predict(net, x, method="moments")
    assert (moments.probs - many.probs).abs().mean() < 0.75 * (single - many.probs).abs().mean()
    assert moments.mutual_info.mean() == pytest.approx(many.mutual_info.mean().item(), rel=0.25)
    both = torch.stack([moments.mutual_info.flatten(), many.mutual_info.flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.75


@pytest.mark.parametrize("kind", ["chain", "unet"])
def test_it_is_a_distribution_at_every_pixel(kind: str) -> None:
    net, x = segmenter(kind)
    found = bayesnorm.predict(net, x, method="moments")
    assert found.probs.shape == found.log_probs.shape == (2, 3, 32, 32)
    assert found.entropy.shape == found.mutual_info.shape == (2, 32, 32)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(2, 32, 32))
    torch.testing.assert_close(found.probs.log(), found.log_probs, rtol=1e-4, atol=1e-5)
    assert (found.mutual_info > 0).float().mean() > 0.9


def test_it_changes_nothing_and_does_not_depend_on_pieces() -> None:
    net, x = segmenter("chain")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    whole = bayesnorm.predict(net.train(), x, method="moments").probs
    torch.testing.assert_close(
        bayesnorm.predict(net, x, method="moments", max_rows=1).probs, whole, rtol=1e-4, atol=1e-5
    )
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_without_noise_it_is_the_single_pass() -> None:
    net, x = one_layer(1e-6), smooth(2, 8)
    torch.testing.assert_close(
        bayesnorm.predict(net, x, method="moments").probs, bayesnorm.predict(net, x, samples=0).probs
    )
