"""ResNet-18: the published architecture, normalized in every way, and the spread of its residual stream."""

import copy
from typing import Any

import pytest
import torch
from members import MEMBERS, distance, perturb_, train_and_eval
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import norm_layers
from bayesnorm.models import ResNet18, resnet18

CONVOLUTION_WEIGHTS = (
    11_159_232  # 11,173,962 of the published CIFAR version, less 9,600 of its BatchNorms and 5,130 (fc)
)
CHANNELS = 64 * 5 + 128 * 5 + 256 * 5 + 512 * 5


def small(norm: str | None = "analytic", scale: str = "bayes", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return resnet18(norm, scale, **{"width": 0.125, **options})


def images(count: int = 3, side: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def stream(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs of the eight blocks."""
    found: list[Tensor] = []
    handles = [block.register_forward_hook(lambda module, args, out: found.append(out.clone())) for block in net.blocks]
    net(x)
    for handle in handles:
        handle.remove()
    return found


def test_it_is_the_published_network() -> None:
    net = resnet18("batch", "point")
    layers = norm_layers(net)
    assert len(layers) == 20
    assert sum(layer.weight.numel() for layer in layers.values()) == CONVOLUTION_WEIGHTS
    assert sum(p.numel() for p in net.parameters()) == 11_173_962
    bayes = sum(p.numel() for p in resnet18().parameters())
    assert bayes == 11_173_962 + CHANNELS  # u
    plain = sum(p.numel() for p in resnet18(norm=None).parameters())
    assert plain == 11_173_962 - CHANNELS  # a bias alone
    kernels = [layer.kernel_size[0] for name, layer in layers.items() if "shortcut" in name]
    assert kernels == [1, 1, 1]


@pytest.mark.parametrize(
    ("stem", "side", "maps"),
    [
        ("cifar", 32, (32, 32, 16, 16, 8, 8, 4, 4)),
        ("cifar", 8, (8, 8, 4, 4, 2, 2, 1, 1)),
        ("cifar", 7, (7, 7, 4, 4, 2, 2, 1, 1)),
        ("imagenet", 64, (16, 16, 8, 8, 4, 4, 2, 2)),
    ],
)
def test_sizes_of_the_maps(stem: Any, side: int, maps: tuple[int, ...]) -> None:
    found = stream(small(stem=stem).eval(), images(2, side))
    assert tuple(y.size(-1) for y in found) == tuple(y.size(-2) for y in found) == maps
    assert [y.size(1) for y in found] == [8, 8, 16, 16, 32, 32, 64, 64]


def test_the_stem_of_imagenet() -> None:
    net = ResNet18(width=0.125, num_classes=1000, stem="imagenet")
    assert (net.conv1.kernel_size, net.conv1.stride, net.conv1.padding) == ((7, 7), (2, 2), (3, 3))
    assert isinstance(net.pool, nn.MaxPool2d)
    assert net(images(1, 64)).shape == (1, 1000)


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
@torch.no_grad()
def test_every_combination_returns_normalized_log_probabilities_and_starts_fresh(norm: str, scale: str) -> None:
    net = small(norm, scale, num_classes=7, in_channels=1)
    assert len(norm_layers(net)) == 20
    assert type(net.fc) is nn.Linear
    for layer in norm_layers(net).values():
        assert torch.equal(layer.scale.s, torch.ones_like(layer.scale.s))
        assert torch.equal(layer.scale.b, torch.zeros_like(layer.scale.b))
    for training in (True, False):
        out = net.train(training)(images(channels=1))
        assert out.shape == (3, 7)
        torch.testing.assert_close(out.exp().sum(1), torch.ones(3))
        assert out.max() < 0


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
@torch.no_grad()
def test_projection_changes_no_output_and_folding_none_either(norm: str, scale: str) -> None:
    net, x = perturb_(small(norm, scale)).train(), images()
    net(x)  # running statistics of batch norm
    for weight in [layer.weight for layer in norm_layers(net).values()]:
        weight.mul_(3.0)
    projected = copy.deepcopy(net)
    bayesnorm.project_(projected)
    lengths = torch.cat([layer.weight.flatten(1).norm(dim=1) for layer in norm_layers(projected).values()])
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    for after, before in zip(train_and_eval(projected, x), train_and_eval(net, x), strict=True):
        assert distance(after, before) < 1e-5
    folded = bayesnorm.fold(net)
    assert not norm_layers(folded)
    assert distance(folded(x), net.eval()(x)) < 1e-5


@pytest.mark.parametrize("scale", ["point", "noise", "bayes"])
@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_one_image_is_a_batch(norm: str, scale: str) -> None:
    net, x, y = small(norm, scale).train(), images(1), torch.tensor([3])
    elbo = bayesnorm.ELBO(net, n_data=100)
    opt = torch.optim.SGD(bayesnorm.param_groups(net, lr=0.01), momentum=0.9, nesterov=True)
    losses = []
    for _ in range(6):
        loss = elbo(net(x), y)
        opt.zero_grad()
        loss.total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
        opt.step()
        bayesnorm.project_(net)
        losses.append(loss.nll.item())
    assert losses[-1] < losses[0]


def test_without_a_norm_it_is_plain_torch_and_trains() -> None:
    net = small(None)
    assert not norm_layers(net)
    assert isinstance(net, ResNet18)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
    x, y = images(8), torch.arange(8)
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(40):
        loss = nn.functional.nll_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert 2 < losses[0] < 3.5
    assert losses[-1] < 0.2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("norm", "lowest", "highest"), [(None, 0.1, 1.5), ("batch", 0.6, 1.4), ("weight", 0.1, 1.0), ("analytic", 0.6, 1.4)]
)
def test_the_residual_stream_neither_vanishes_nor_explodes(
    norm: str | None, lowest: float, highest: float, seed: int
) -> None:
    """At the start: mean over the channels of the std over batch and space, behind each of the eight blocks.

    A sum of two normalized responses has a std of 1.41, and 0.83 behind the ReLU.
    """
    torch.manual_seed(seed)
    net = resnet18(norm, "point", width=0.5).train()
    found = [y.std((0, 2, 3)).mean().item() for y in stream(net, torch.randn(16, 3, 32, 32))]
    assert len(found) == 8
    assert lowest < min(found)
    assert max(found) < highest


def test_widths_and_input_statistics() -> None:
    tiny = ResNet18(width=0.001, in_channels=1)
    assert {m.out_channels for m in tiny.modules() if isinstance(m, nn.Conv2d)} == {1}
    assert tiny(images(2, channels=1)).shape == (2, 10)
    mean, var = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1.0, 2.0, 0.5])
    net = small(input_stats=(mean, var))
    assert torch.equal(net.input_mean, mean)
    assert torch.equal(net.input_var, var)


@pytest.mark.parametrize("arguments", [{"stem": "mnist"}, {"width": 0.0}, {"norm": "layer"}, {"scale": "none"}])
def test_errors_name_the_value(arguments: dict[str, Any]) -> None:
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"{name}.*{value}") as raised:
        resnet18(**arguments)
    assert "\n" not in str(raised.value)
