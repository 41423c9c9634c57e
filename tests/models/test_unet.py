"""U-Net: the published architecture, normalized in every way, and that it learns a mask."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from members import MEMBERS, distance, perturb_, train_and_eval
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import norm_layers
from bayesnorm.models.unet import STRIDE, UNet, unet

NORMALIZED = 18 + 4


def small(norm: str | None = "analytic", scale: str = "bayes", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return unet(norm, scale, **{"width": 0.0625, **options})


def smooth(count: int, size: int) -> Tensor:
    noise = torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(0))
    x = F.avg_pool2d(noise, 5, 1, 2, count_include_pad=False)
    return (x - x.mean()) / x.std()


def parameters(before: int, after: int, taps: int) -> int:
    """Of a convolution with a bias."""
    return (before * taps + 1) * after


def test_it_is_the_published_network() -> None:
    channels = (1, 64, 128, 256, 512, 1024)
    down = sum(parameters(a, b, 9) + parameters(b, b, 9) for a, b in pairwise(channels))
    up = sum(parameters(2 * b, b, 4) + parameters(2 * b, b, 9) + parameters(b, b, 9) for b in channels[1:-1])
    plain = sum(p.numel() for p in unet(None).parameters())
    assert plain == down + up + parameters(64, 2, 1)
    net = unet("batch", "point")
    layers = norm_layers(net)
    assert len(layers) == NORMALIZED
    assert sum(p.numel() for p in net.parameters()) == plain + sum(layer.out_channels for layer in layers.values())


@pytest.mark.parametrize(("height", "width"), [(16, 16), (32, 48), (64, 16)])
def test_any_size_that_its_stride_divides(height: int, width: int) -> None:
    out = small()(torch.randn(2, 1, height, width))
    assert out.shape == (2, 2, height, width)
    torch.testing.assert_close(out.exp().sum(1), torch.ones(2, height, width))


@pytest.mark.parametrize("size", [(STRIDE, STRIDE + 1), (40, 32), (8, 8)])
def test_any_other_size_is_named(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"{size[0]} x {size[1]}.*divisible by 16") as raised:
        small()(torch.randn(1, 1, *size))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
@torch.no_grad()
def test_every_combination_starts_fresh_and_projection_and_folding_change_nothing(norm: str, scale: str) -> None:
    net, x = small(norm, scale, num_classes=3, in_channels=2).train(), torch.randn(2, 2, 32, 32)
    assert len(norm_layers(net)) == NORMALIZED
    for layer in norm_layers(net).values():
        assert torch.equal(layer.scale.s, torch.ones_like(layer.scale.s))
        assert torch.equal(layer.scale.b, torch.zeros_like(layer.scale.b))
    bayesnorm.init_from_data_(net, x)
    assert perturb_(net)(x).isfinite().all()
    for layer in norm_layers(net).values():
        layer.weight.mul_(3.0)
    projected = copy.deepcopy(net)
    bayesnorm.project_(projected)
    for after, before in zip(train_and_eval(projected, x), train_and_eval(net, x), strict=True):
        assert distance(after, before) < 1e-4
    assert distance(bayesnorm.fold(net)(x), net.eval()(x)) < 1e-4


@pytest.mark.parametrize("norm", [None, "batch", "weight", "analytic"])
def test_the_mask_of_one_image_is_learned(norm: str | None) -> None:
    net, x = small(norm, "bayes").train(), smooth(1, 32)
    y = (F.avg_pool2d(x, 5, 1, 2)[:, 0] > 0).long()
    if norm != "batch":
        bayesnorm.init_from_data_(net, x)
    elbo = bayesnorm.ELBO(net, n_data=1000)
    opt = torch.optim.Adam(bayesnorm.param_groups(net, lr=3e-3))
    for _ in range(60):
        loss = elbo(net(x), y)
        opt.zero_grad()
        loss.total.backward()
        opt.step()
        bayesnorm.project_(net)
    assert loss.nll < 0.4  # a guess has log 2 = 0.69


def test_what_a_width_scales() -> None:
    outs = [m.out_channels for m in UNet(0.0625, 5).modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    assert outs == [4, 4, 8, 8, 16, 16, 32, 32, 64, 64, 32, 32, 32, 16, 16, 16, 8, 8, 8, 4, 4, 4, 5]
    with pytest.raises(ValueError, match="width=0"):
        UNet(0)
