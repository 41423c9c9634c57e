"""Data-dependent initialization: mean 0 and variance 1 behind every layer."""

import pytest
import torch
from architectures import CASES
from small_networks import NETWORKS, RANDOM, converted, inputs
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import NORMALIZED, norm_layers

SCALES = ["point", *RANDOM]


@torch.no_grad()
def outputs(net: nn.Module, layers: list[nn.Module], x: Tensor) -> list[Tensor]:
    """What the layers return in one evaluation pass, channels first, in float64."""
    found: list[Tensor] = []

    def look(layer: nn.Module, args: object, out: Tensor) -> None:
        found.append(out.clone().double().movedim(-1 if isinstance(layer, nn.Linear) else 1, 0).flatten(1))

    handles = [layer.register_forward_hook(look) for layer in layers]
    net.eval()(x)
    for handle in handles:
        handle.remove()
    return found


def standardized(out: Tensor, tolerance: float = 2e-5) -> bool:
    """Mean 0 and variance 1 of every channel; float32 rounding of a standardized sum is below 1e-5."""
    var, mean = torch.var_mean(out, 1, correction=0)
    return bool((mean.abs() < tolerance).all() and ((var - 1).abs() < tolerance).all())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_layer_is_standardized_on_the_batch(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale).train(), inputs(network, 32) * 2 + 1
    layers = list(norm_layers(net).values())
    weights = [layer.weight.clone() for layer in layers]
    assert not any(standardized(out) for out in outputs(net, layers, x))
    bayesnorm.init_from_data_(net.train(), x)
    assert all(module.training for module in net.modules())
    assert net.noise_step == 0
    found = outputs(net, layers, x)
    assert len(found) == len(layers)
    assert all(standardized(out) for out in found)
    assert all(torch.equal(layer.weight, weight) for layer, weight in zip(layers, weights, strict=True))
    assert all((layer.scale.s > 0).all() for layer in layers)
    assert not standardized(outputs(net, layers, 1.1 * x)[0])


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_scales_that_training_made_negative_are_standardized_too(norm: str) -> None:
    net, x = converted("linear", norm, "point"), inputs("linear", 32) * 2 + 1
    layers = list(norm_layers(net).values())
    with torch.no_grad():
        for layer in layers:
            layer.scale.s[::2] = -1.5
    before = outputs(net, layers[:1], x)[0]
    bayesnorm.init_from_data_(net, x)
    found = outputs(net, layers, x)
    assert all(standardized(out) for out in found)
    signs = ((found[0] - found[0].mean(1, keepdim=True)) * (before - before.mean(1, keepdim=True))).sum(1).sign()
    assert (signs == 1).all(), "a channel was turned over"


@pytest.mark.parametrize("network", NETWORKS)
def test_plain_networks_too(network: str) -> None:
    torch.manual_seed(0)
    net, x = NETWORKS[network][0](), inputs(network, 32) * 2 + 1
    layers = [module for module in net.modules() if type(module) in NORMALIZED]
    bayesnorm.init_from_data_(net, x)
    found = outputs(net, layers, x)
    assert len(found) == len(layers)
    assert all(standardized(out) for out in found)


@pytest.mark.parametrize(
    ("layer", "size"), [(nn.Conv2d(3, 4, 3, bias=False), (3, 8, 8)), (nn.Linear(5, 4, bias=False), (5,))]
)
def test_without_a_bias_only_the_variance_is_set(layer: nn.Module, size: tuple[int, ...]) -> None:
    net, x = nn.Sequential(layer), torch.randn(32, *size, generator=torch.Generator().manual_seed(0)) + 1
    bayesnorm.init_from_data_(net, x)
    out = outputs(net, [layer], x)[0]
    torch.testing.assert_close(out.var(1, correction=0), torch.ones(4, dtype=torch.float64), rtol=2e-5, atol=0)
    assert out.mean(1).abs().max() > 0.1


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_layers_that_are_not_normalized_stay(norm: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3))
    net, x = bayesnorm.convert(net, norm=norm, scale="bayes"), inputs("conv2d", 32)
    head = net[3].weight.clone(), net[3].bias.clone()
    bayesnorm.init_from_data_(net, x)
    assert standardized(outputs(net, [net[0]], x)[0])
    assert torch.equal(net[3].weight, head[0])
    assert torch.equal(net[3].bias, head[1])


def test_batch_normalization_is_left_alone() -> None:
    net, x = converted("conv2d", "batch", "bayes"), inputs("conv2d", 8)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    bayesnorm.init_from_data_(net, x)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_a_channel_that_is_constant_on_the_batch_keeps_its_scale_and_loses_its_mean(norm: str) -> None:
    net, x = converted("linear", norm, "bayes"), inputs("linear", 16)
    with torch.no_grad():
        net[0].weight[1] = 0
    bayesnorm.init_from_data_(net, x)
    out = outputs(net, list(norm_layers(net).values()), x)
    assert all(part.isfinite().all() for part in out)
    assert out[0][1].abs().max() < 1e-5
    assert all(standardized(part) for part in out[1:])


def test_float64_is_exact_and_an_exception_restores() -> None:
    net, x = converted("residual", "analytic", "bayes").double(), inputs("residual", 32).double()
    bayesnorm.init_from_data_(net, x)
    layers = list(norm_layers(net).values())
    assert all(standardized(out, 1e-12) for out in outputs(net, layers, x))
    expected = net(x)
    with pytest.raises(ValueError, match="holds no input"):
        bayesnorm.init_from_data_(net, x[:0])
    with pytest.raises(RuntimeError):
        bayesnorm.init_from_data_(net.train(), x[:, :2])
    assert all(module.training for module in net.modules())
    torch.testing.assert_close(net.eval()(x), expected)
    assert not any(layer._forward_hooks for layer in layers)


@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("name", ["preact_tiny", "densenet121", "resnet18"])
def test_norms_without_a_convolution_and_published_networks_too(name: str, norm: str) -> None:
    torch.manual_seed(0)
    net = bayesnorm.convert(CASES[name].build(), norm=norm, scale="bayes", input_size=CASES[name].input_size)
    x = torch.randn(8, *CASES[name].input_size)
    bayesnorm.init_from_data_(net, x)
    layers = list(norm_layers(net).values())
    assert all(standardized(out, 1e-3) for out in outputs(net, layers, x))


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_scales_do_not_compound_with_depth(norm: str) -> None:
    """From the running statistics of an untrained network, which are far from those of its activations."""
    torch.manual_seed(0)
    blocks = [(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(30)]
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *[m for block in blocks for m in block])
    net, x = bayesnorm.convert(plain, norm=norm, scale="bayes"), inputs("conv2d", 32)
    bayesnorm.init_from_data_(net, x)
    layers = list(norm_layers(net).values())
    assert all(standardized(out, 1e-3) for out in outputs(net, layers, x))
    scales = torch.cat([layer.scale.s.detach() for layer in layers])
    assert scales.max() < 100


def test_a_layer_used_twice_is_set_at_its_first_use() -> None:
    torch.manual_seed(0)
    shared = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())
    plain = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), shared, shared, nn.Conv2d(6, 4, 1))
    net, x = bayesnorm.convert(plain, norm="weight", scale="point", preserve=False), inputs("conv2d", 32)
    bayesnorm.init_from_data_(net, x)
    first, once, _, last = outputs(net, list(norm_layers(net).values()), x)
    assert all(standardized(out) for out in (first, once, last))


def test_the_first_step_of_training_is_counted_afterwards() -> None:
    """The pass of the initialization is apart from training; those behind it are not."""
    net, x = converted("conv2d", "analytic", "bayes"), inputs("conv2d", 8)
    bayesnorm.init_from_data_(net, x)
    net.train()(x)
    assert net.noise_step == 1
