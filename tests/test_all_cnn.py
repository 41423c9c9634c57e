"""All-CNN: the paper's network, and the spread of its activations at initialization."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import norm_layers
from bayesnorm.models import AllCNN, all_cnn

CHANNELS = (96, 96, 96, 192, 192, 192, 192, 192, 10)
COMBINATIONS = [(norm, scale) for norm in ("batch", "weight", "analytic") for scale in ("point", "noise", "bayes")]


@contextmanager
def responses(net: nn.Module) -> Iterator[list[Tensor]]:
    """Outputs of the nine convolutions, in order."""
    found: list[Tensor] = []
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    # A copy: the activation behind works in place.
    handles = [m.register_forward_hook(lambda module, args, out: found.append(out.clone())) for m in convolutions]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def test_the_default_is_the_network_of_the_paper() -> None:
    net = all_cnn()
    layers = norm_layers(net)
    assert len(layers) == 9
    assert sum(layer.weight.numel() for layer in layers.values()) == 1_368_480
    assert sum(p.numel() for p in net.parameters()) == 1_368_480 + 3 * sum(CHANNELS)  # s, b and u per channel
    assert sum(p.numel() for p in all_cnn(norm=None).parameters()) == 1_368_480 + sum(CHANNELS)
    assert round(sum(p.numel() for p in net.parameters()) / 1e6, 2) == 1.37
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert [c.kernel_size[0] for c in convolutions] == [3, 3, 3, 3, 3, 3, 3, 1, 1]
    assert [c.stride[0] for c in convolutions] == [1, 1, 2, 1, 1, 2, 1, 1, 1]
    assert tuple(c.out_channels for c in convolutions) == CHANNELS
    slopes = [module.negative_slope for module in net.modules() if isinstance(module, nn.LeakyReLU)]
    assert slopes == [0.01] * 8


@pytest.mark.parametrize(
    ("padding", "maps"),
    [("valid", (30, 28, 13, 11, 9, 4, 2, 2, 2)), ("same", (32, 32, 16, 16, 16, 8, 8, 8, 8))],
)
@torch.no_grad()
def test_sizes_of_the_maps(padding: Any, maps: tuple[int, ...]) -> None:
    net = all_cnn(padding=padding, width=0.05).eval()
    with responses(net) as found:
        out = net(torch.randn(2, 3, 32, 32))
    assert tuple(y.size(-1) for y in found) == tuple(y.size(-2) for y in found) == maps
    assert out.shape == (2, 10)


@pytest.mark.parametrize(("norm", "scale"), COMBINATIONS)
@torch.no_grad()
def test_every_combination_returns_normalized_log_probabilities_and_starts_fresh(norm: str, scale: str) -> None:
    torch.manual_seed(0)
    net = all_cnn(norm=norm, scale=scale, width=0.1, num_classes=7, in_channels=1)
    assert len(norm_layers(net)) == 9
    for layer in norm_layers(net).values():
        assert torch.equal(layer.scale.s, torch.ones_like(layer.scale.s))
        assert torch.equal(layer.scale.b, torch.zeros_like(layer.scale.b))
    for training in (True, False):
        out = net.train(training)(torch.randn(3, 1, 32, 32))
        assert out.shape == (3, 7)
        torch.testing.assert_close(out.exp().sum(1), torch.ones(3))
        assert out.max() < 0


@torch.no_grad()
def test_without_a_norm_it_is_plain_torch() -> None:
    net = all_cnn(norm=None, width=0.1)
    assert not norm_layers(net)
    assert {type(module) for module in net.modules()} == {AllCNN, nn.Sequential, nn.Conv2d, nn.LeakyReLU}
    torch.testing.assert_close(net(torch.randn(2, 3, 32, 32)).exp().sum(1), torch.ones(2))


def test_width_scales_the_hidden_layers_only() -> None:
    outs = [m.out_channels for m in all_cnn(norm=None, width=0.25).modules() if isinstance(m, nn.Conv2d)]
    assert outs == [24, 24, 24, 48, 48, 48, 48, 48, 10]
    assert min(m.out_channels for m in AllCNN(width=0.001).modules() if isinstance(m, nn.Conv2d)) == 1


def test_input_statistics_reach_the_first_layer() -> None:
    mean, var = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1.0, 2.0, 0.5])
    net = all_cnn(width=0.05, input_stats=(mean, var))
    assert torch.equal(net.input_mean, mean)
    assert torch.equal(net.input_var, var)


@pytest.mark.parametrize("norm", [None, "batch", "weight", "analytic"])
def test_dropout_is_behind_the_strided_convolutions(norm: str | None) -> None:
    net = all_cnn(norm=norm, width=0.1, dropout=0.3)
    modules = list(net.features)
    places = [index for index, module in enumerate(modules) if isinstance(module, nn.Dropout)]
    assert [modules[index].p for index in places] == [0.3, 0.3]
    for index in places:
        strided = [module for module in modules[:index] if isinstance(module, nn.Conv2d)][-1]
        assert strided.stride == (2, 2)
        assert isinstance(modules[index - 1], nn.LeakyReLU), "behind the activation"
    assert len(norm_layers(net)) == (9 if norm else 0)


@pytest.mark.parametrize("norm", [None, "weight", "analytic"])
@torch.no_grad()
def test_in_evaluation_mode_dropout_changes_nothing(norm: str | None) -> None:
    """Analytic norm alone knows of it, in both modes: it divides by the variance of what training sees."""
    nets = {}
    for dropout in (0.0, 0.2):
        torch.manual_seed(4)
        nets[dropout] = all_cnn(norm=norm, scale="point", width=0.1, dropout=dropout)
    x = torch.randn(5, 3, 32, 32)
    plain, net = nets[0.0].eval()(x), nets[0.2].eval()
    assert torch.equal(net(x), plain) == (norm != "analytic")
    assert torch.equal(net(x), net(x)), "nothing is dropped"
    assert not torch.equal(net.train()(x), net(x))


@torch.no_grad()
def test_half_of_the_values_are_dropped_and_the_mean_is_kept() -> None:
    torch.manual_seed(0)
    net = AllCNN(width=0.5, dropout=0.5).train()
    seen: list[tuple[Tensor, Tensor]] = []
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda module, args, out: seen.append((args[0].clone(), out)))
    net(torch.randn(8, 3, 32, 32))
    assert [tuple(before.shape[1:]) for before, _ in seen] == [(48, 13, 13), (96, 4, 4)]
    for before, after in seen:
        kept = after != 0
        assert abs(kept.double().mean().item() - 0.5) < 5 * 0.5 / kept.numel() ** 0.5
        torch.testing.assert_close(after[kept], 2 * before[kept])


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_a_probability_that_is_none_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match=f"dropout={dropout}: must be at least 0 and below 1"):
        all_cnn(dropout=dropout)


@pytest.mark.parametrize("arguments", [{"padding": "full"}, {"width": 0.0}, {"norm": "layer"}, {"scale": "none"}])
def test_errors_name_the_value(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        all_cnn(**arguments)


def smooth_images(count: int, seed: int, exponent: float) -> Tensor:
    """Random fields with an amplitude spectrum f^-exponent and correlated colours, standardized per channel.

    Exponent 1 is that of natural scenes; 1.5 has the correlation of neighbouring pixels of small photographs (0.9).
    """
    generator = torch.Generator().manual_seed(seed)
    f = torch.fft.fftfreq(32)
    radius = (f[:, None] ** 2 + f[None] ** 2).sqrt()
    radius[0, 0] = radius[0, 1]
    noise = torch.randn(count, 3, 32, 32, generator=generator)
    fields = torch.fft.ifft2(torch.fft.fft2(noise) / radius**exponent).real
    # Luminance and two opponent colours: a correlation of 0.9 between channels, as in photographs.
    colours = torch.tensor([[1.0, 0.3, 0.1], [1.0, 0.0, -0.1], [1.0, -0.3, 0.1]])
    images = torch.einsum("dc,nchw->ndhw", colours, fields)
    var, mean = torch.var_mean(images, (0, 2, 3), correction=0, keepdim=True)
    return (images - mean) / var.sqrt()


@torch.no_grad()
def spreads(net: nn.Module, x: Tensor) -> Tensor:
    """For each layer the std of a channel's response over batch and space, averaged over the channels."""
    with responses(net) as found:
        net.eval()(x)
    return torch.stack([y.std((0, 2, 3)).mean() for y in found])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("exponent", "neighbours"), [(1.0, 0.68), (1.5, 0.9)])
def test_analytic_norm_keeps_the_spread_of_all_nine_layers_near_one_and_weight_norm_does_not(
    seed: int, exponent: float, neighbours: float
) -> None:
    x = smooth_images(32, seed, exponent)
    assert (x[..., 1:] * x[..., :-1]).mean().item() == pytest.approx(neighbours, abs=0.03)
    assert (x[:, 0] * x[:, 1]).mean() > 0.9
    torch.manual_seed(seed)
    analytic = spreads(all_cnn(input_stats=bayesnorm.input_stats(x)), x)
    assert analytic.shape == (9,)
    assert analytic.min() > 0.7
    assert analytic.max() < 1.3
    torch.manual_seed(seed)
    weight = spreads(all_cnn(norm="weight"), x)
    assert (weight[1:] < 0.8 * weight[:-1]).all()  # each layer shrinks it further
    assert weight[-1] < 0.05


@pytest.mark.parametrize("seed", range(2))
def test_with_the_covariance_of_the_patches_the_first_layer_is_exact(seed: int) -> None:
    x = smooth_images(32, seed, 1.5)
    torch.manual_seed(seed)
    net = bayesnorm.convert(
        AllCNN(), norm=bayesnorm.Analytic(first_layer="patch"), scale="bayes", preserve=False, example=x
    )
    with torch.no_grad(), responses(net) as found:
        net.eval()(x)
    std = found[0].std((0, 2, 3), correction=0)
    # eps = 1e-5 is added to the variance of the patches, a few per mille for the smoothest filters.
    torch.testing.assert_close(std, torch.ones_like(std), rtol=1e-2, atol=0)
    assert found[0].mean((0, 2, 3)).abs().max() < 1e-3
    exact = torch.stack([y.std((0, 2, 3)).mean() for y in found])
    assert exact.min() > 0.9
    assert exact.max() < 1.2
