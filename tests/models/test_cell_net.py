"""The network for cells: sizes, every activation and norm, and the start of training."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from members import MEMBERS, distance, perturb_, train_and_eval
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import norm_layers
from bayesnorm.models import CellNet, cell_net

CHANNELS = (64, 64, 32, 32, 16, 16, 8, 8, 4, 4, 2)
ACTIVATIONS = {"leaky_relu": nn.LeakyReLU, "softmax": nn.Softmax, "softplus": nn.Softplus}


def smooth(count: int, side: int, seed: int = 0) -> Tensor:
    """Standardized images whose neighbouring pixels are alike, as under a microscope."""
    noise = torch.randn(count, 1, side + 4, side + 4, generator=torch.Generator().manual_seed(seed))
    x = F.avg_pool2d(noise, 5, 1)
    return (x - x.mean()) / x.std()


@torch.no_grad()
def spreads(net: nn.Module, x: Tensor) -> list[float]:
    """Std of each convolution's response, averaged over its channels."""
    found: list[float] = []
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    handles = [
        m.register_forward_hook(lambda module, args, out: found.append(out.std((0, 2, 3)).mean().item()))
        for m in convolutions
    ]
    net(x)
    for handle in handles:
        handle.remove()
    return found


def test_the_default_is_the_network_of_the_paper() -> None:
    net = cell_net()
    layers = list(norm_layers(net).values())
    assert tuple(layer.out_channels for layer in layers) == CHANNELS
    assert [layer.kernel_size[0] for layer in layers] == [9] * 10 + [1]
    weights = sum(layer.weight.numel() for layer in layers)
    assert weights == 81 * (64 + 64 * 64 + 64 * 32 + 32 * 32 + 32 * 16 + 16 * 16 + 16 * 8 + 64 + 32 + 16) + 8
    assert sum(p.numel() for p in net.parameters()) == weights + 3 * sum(CHANNELS)
    assert round(weights / 1e6, 2) == 0.67
    kinds = [type(module).__name__ for module in net.features]
    pair = ["NormConv2d", "LeakyReLU"] * 2 + ["_Average"]
    assert kinds == pair * 5 + ["NormConv2d"]


@pytest.mark.parametrize("size", [(1, 1), (7, 12), (33, 20)])
@torch.no_grad()
def test_every_size_is_kept(size: tuple[int, int]) -> None:
    out = cell_net(width=0.25).eval()(torch.randn(2, 1, *size))
    assert out.shape == (2, 2, *size)
    torch.testing.assert_close(out.exp().sum(1), torch.ones(2, *size))


@torch.no_grad()
def test_averages_leave_the_padding_out() -> None:
    pools = [module for module in CellNet().modules() if isinstance(module, nn.AvgPool2d)]
    assert len(pools) == 5
    assert all(torch.equal(pool(torch.ones(1, 1, 5, 4)), torch.ones(1, 1, 5, 4)) for pool in pools)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.no_grad()
def test_maps_in_channels_last_stay_so_on_a_cpu(activation: Any) -> None:
    """A change of order, there and back at each average or softmax, was a sixth of a training step."""
    net = cell_net(activation=activation).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    orders: list[bool] = []
    for module in net.features:  # type: ignore[union-attr]
        module.register_forward_hook(
            lambda module, args, out: orders.append(out.is_contiguous(memory_format=torch.channels_last))
        )
    net(torch.randn(2, 1, 12, 12).contiguous(memory_format=torch.channels_last))
    assert orders == [True] * (11 + 10 + 5)


@pytest.mark.parametrize("channels", [2, 64])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_the_softmax_is_torchs_in_either_order(channels: int, form: torch.memory_format) -> None:
    torch.manual_seed(0)
    ours = next(module for module in CellNet("softmax").modules() if isinstance(module, nn.Softmax))
    x = torch.randn(2, channels, 5, 4, dtype=torch.float64).contiguous(memory_format=form).requires_grad_()
    weight = torch.randn(2, channels, 5, 4, dtype=torch.float64)
    found, usual = ours(x), x.softmax(1)
    assert found.stride() == x.stride()
    torch.testing.assert_close(found, usual)
    gradients = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (found, usual)]
    torch.testing.assert_close(*gradients)


def test_transforms_go_through_the_softmax() -> None:
    net = CellNet("softmax", width=0.5).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(3, 1, 1, 6, 6)
    torch.testing.assert_close(torch.vmap(net)(x), torch.stack([net(image) for image in x]))


@pytest.mark.parametrize("activation", ["softmax", "softplus"])
def test_autocast_does_not_widen_the_activations(activation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does on CUDA, which needs twice the memory and time."""
    seen: list[bool] = []
    for name in ("softmax", "softplus"):
        usual = getattr(F, name)

        def watched(*args: Any, usual: Any = usual, **kwargs: Any) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            out: Tensor = usual(*args, **kwargs)
            return out

        monkeypatch.setattr(F, name, watched)
    net = CellNet(activation, width=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(1, 1, 8, 8))
    assert seen == [False] * 10


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: Any, final: bool) -> None:
    net = cell_net(norm=None, activation=activation, final_activation=final, width=0.5)
    assert isinstance(net, CellNet)
    assert not norm_layers(net)
    kinds = [type(module) for module in net.features]
    assert sum(issubclass(kind, ACTIVATIONS[activation]) for kind in kinds) == 10 + final
    assert issubclass(kinds[-1], ACTIVATIONS[activation]) == final


@torch.no_grad()
def test_a_softmax_before_the_log_softmax_bounds_the_probabilities() -> None:
    torch.manual_seed(0)
    net = cell_net("batch", "point", "softmax", final_activation=True).train()
    list(norm_layers(net).values())[-1].scale.s.fill_(100.0)
    out = net(smooth(2, 16))
    bound = 1 / (1 + math.exp(-1))
    assert 0.73 < out.exp().max() < bound + 1e-6
    assert -math.log(bound) == pytest.approx(0.313, abs=1e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
@torch.no_grad()
def test_every_combination_starts_fresh_and_projection_and_folding_change_nothing(
    norm: str, scale: str, activation: Any
) -> None:
    torch.manual_seed(0)
    net = cell_net(norm, scale, activation, width=0.5, num_classes=3, in_channels=2).train()
    x = torch.randn(2, 2, 12, 10)
    assert len(norm_layers(net)) == 11
    for layer in norm_layers(net).values():
        assert torch.equal(layer.scale.s, torch.ones_like(layer.scale.s))
        assert torch.equal(layer.scale.b, torch.zeros_like(layer.scale.b))
    bayesnorm.init_from_data_(net, x)
    out = perturb_(net)(x)
    assert out.shape == (2, 3, 12, 10)
    assert out.isfinite().all()
    for weight in [layer.weight for layer in norm_layers(net).values()]:
        weight.mul_(3.0)
    projected = copy.deepcopy(net)
    bayesnorm.project_(projected)
    for after, before in zip(train_and_eval(projected, x), train_and_eval(net, x), strict=True):
        assert distance(after, before) < 1e-4
    assert distance(bayesnorm.fold(net)(x), net.eval()(x)) < 1e-4


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", [None, "weight", "analytic"])
def test_a_start_from_data_standardizes_every_layer(norm: str | None, activation: Any) -> None:
    """Without it the analytic norm, which takes pixels for independent, lets the outputs grow."""
    torch.manual_seed(0)
    net, x = cell_net(norm, "point", activation, width=0.5).eval(), smooth(4, 32)
    before = spreads(net, x)
    assert max(abs(spread - 1) for spread in before) > 0.5
    bayesnorm.init_from_data_(net, x)
    assert spreads(net, x) == pytest.approx([1.0] * 11, rel=1e-3)


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_one_image_is_a_batch_and_its_mask_is_learned(norm: str) -> None:
    torch.manual_seed(0)
    net, x = cell_net(norm, "bayes", width=0.5).train(), smooth(1, 24)
    y = (F.avg_pool2d(x, 5, 1, 2)[:, 0] > 0).long()
    y[:, 0] = -100
    bayesnorm.init_from_data_(net, x)
    elbo = bayesnorm.ELBO(net, n_data=100)
    opt = torch.optim.Adam(bayesnorm.param_groups(net, lr=5e-4))
    for _ in range(40):
        loss = elbo(net(x), y)
        opt.zero_grad()
        loss.total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
        opt.step()
        bayesnorm.project_(net)
    with torch.no_grad():
        assert F.nll_loss(net.eval()(x), y) < 0.62  # a guess has log 2 = 0.69


def test_width_scales_the_hidden_layers_only() -> None:
    outs = [m.out_channels for m in CellNet(width=0.5, num_classes=5).modules() if isinstance(m, nn.Conv2d)]
    assert outs == [32, 32, 16, 16, 8, 8, 4, 4, 2, 2, 5]
    assert min(m.out_channels for m in CellNet(width=0.001).modules() if isinstance(m, nn.Conv2d)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"activation": "relu"},
        {"width": 0.0},
        {"width": 0.3, "activation": "softmax"},
        {"norm": "layer"},
        {"scale": "none"},
    ],
)
def test_errors_name_the_value(arguments: dict[str, Any]) -> None:
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=f"{name}.*{value}") as raised:
        cell_net(**arguments)
    assert "\n" not in str(raised.value)
