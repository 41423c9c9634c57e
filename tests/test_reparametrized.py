"""Effective weight and bias in one step of autograd, against the plain formulas of the norms."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.func import grad as func_grad

import bayesnorm
from bayesnorm.layers import NormLayer
from bayesnorm.norms.analytic import EPS
from bayesnorm.norms.base import Norm
from bayesnorm.norms.geometry import Geometry
from bayesnorm.norms.reparametrized import applies, reparametrized

SHAPES = [(5, 3, 3, 3), (5, 4, 1, 1), (5, 4), (4, 3, 5), (3, 2, 2, 3, 2)]


def given(shape: tuple[int, ...], moments: bool, gain: bool, last: bool = False) -> list[Tensor | None]:
    torch.manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64)
    if last:
        weight = weight.contiguous(memory_format=torch.channels_last)
    outputs, inputs = shape[:2]
    values: list[Tensor | None] = [weight]
    values += [torch.randn(inputs).double(), torch.rand(inputs).double() + 0.1] if moments else [None, None]
    values += [torch.randn(outputs).double(), torch.rand(outputs).double() + 0.5]
    values += [torch.randn(outputs).double() if gain else None]
    return [value if value is None else value.requires_grad_() for value in values]


def by_formula(weight: Tensor, mean: Tensor | None, var: Tensor | None, center: Tensor, spread: Tensor, gain: Tensor):
    rows = weight.flatten(1)
    taps = rows.size(1) // weight.size(1)
    mean = torch.zeros(weight.size(1)).double() if mean is None else mean
    var = torch.ones(weight.size(1)).double() if var is None else var
    mu, sigma = rows @ mean.repeat_interleave(taps), (rows**2 @ var.repeat_interleave(taps)).sqrt()
    factor = (1.0 if gain is None else gain) / (spread * sigma)
    return weight * factor.view(-1, *[1] * (weight.dim() - 1)), -(mu + center * sigma) * factor


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_derivatives_of_first_and_second_order(shape, moments, gain):
    values = given(shape, moments, gain)
    torch.testing.assert_close(reparametrized(*values), by_formula(*values))
    assert torch.autograd.gradcheck(reparametrized, values)
    assert torch.autograd.gradgradcheck(reparametrized, values)


@pytest.mark.parametrize("moments", [False, True])
def test_channels_last_weights_give_the_same_and_stay_channels_last(moments):
    plain, last = (given((5, 3, 3, 2), moments, True, flag) for flag in (False, True))
    out, expected = reparametrized(*last), reparametrized(*plain)
    assert out[0].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, expected, check_stride=False)
    grads = [
        torch.autograd.grad(found[0].sin().sum() + found[1].cos().sum(), [v for v in values if v is not None])
        for found, values in ((out, last), (expected, plain))
    ]
    torch.testing.assert_close(*grads, check_stride=False)
    assert torch.autograd.gradcheck(reparametrized, last)


def test_the_strides_of_the_weight_are_kept_also_where_its_layout_is_ambiguous():
    weight = torch.randn(4, 1, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    assert weight.is_contiguous()
    assert weight.stride() != (9, 9, 3, 1)
    out, _ = reparametrized(weight, None, None, torch.zeros(4), torch.ones(4), None)
    assert out.stride() == weight.stride()
    torch.testing.assert_close(out, weight / weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1))


def test_eps_is_added_to_the_variance():
    weight, mean, var, *others = given((5, 3, 3, 3), True, False)
    assert var is not None
    found = reparametrized(weight, mean, var, *others, eps=0.25)
    torch.testing.assert_close(found, reparametrized(weight, mean, var + 0.25, *others))


def test_an_all_zero_filter_has_finite_values_and_gradients():
    values = given((3, 2, 3, 3), True, False)
    with torch.no_grad():
        values[0][1] = 0
    weight, bias = reparametrized(*values)
    assert weight[1].abs().max() == 0
    for gradient in torch.autograd.grad(weight.sum() + bias.sum(), [v for v in values if v is not None]):
        assert gradient.isfinite().all()


def network(norm: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 2, 2), nn.BatchNorm2d(4)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 3))
    return bayesnorm.convert(net, norm=norm, scale="bayes").double()


@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("training", [True, False])
def test_a_network_has_the_outputs_and_gradients_of_the_plain_formulas(norm, training, monkeypatch):
    net, x = network(norm).train(training), torch.randn(4, 3, 8, 8).double()
    found = []
    for effective in (None, Norm.effective):
        if effective is not None:
            for kind in {type(m.norm) for m in net.modules() if isinstance(m, NormLayer)}:
                monkeypatch.setattr(kind, "effective", effective)
        net.noise_step.zero_()
        out = net(x)
        found.append((out, *torch.autograd.grad(out.square().sum(), list(net.parameters()), allow_unused=True)))
    used = [pair for pair in zip(*found, strict=True) if pair[0] is not None]
    assert len(used) > 6
    for pair in used:
        torch.testing.assert_close(*pair)


def test_the_norm_takes_this_path_only_where_it_is_right():
    weight = torch.randn(4, 2, 3, 3, requires_grad=True)
    assert applies(weight, Geometry())
    assert not applies(weight, Geometry(groups=2))
    assert not applies(weight, Geometry(transposed=True))
    assert not applies(weight.to("meta"), Geometry())
    assert not applies(weight[:, :, ::2], Geometry())
    assert applies(weight.to(memory_format=torch.channels_last), Geometry())
    with torch.no_grad():
        assert not applies(weight, Geometry())
    with torch.autograd.forward_ad.dual_level():
        assert not applies(weight, Geometry())
    calls = []

    def through(w: Tensor) -> Tensor:
        calls.append(applies(w, Geometry()))
        return w.sum()

    func_grad(through)(weight)
    assert calls == [False]


def test_transforms_of_torch_func_see_the_same_gradients():
    net, x = network("analytic").eval(), torch.randn(2, 3, 8, 8).double()
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    got = func_grad(lambda values: functional_call(net, values, x).square().sum())(parameters)
    net(x).square().sum().backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(got[name], torch.zeros_like(p) if p.grad is None else p.grad)


def test_eps_of_the_analytic_norm_is_in_units_of_the_length_of_the_weight():
    net = bayesnorm.convert(nn.Sequential(nn.Conv2d(2, 3, 1)), norm="analytic", scale="point", input_stats=(0.0, 0.0))
    layer = net[0]
    weight, _ = layer.norm.effective(layer.weight, layer.geometry, (torch.zeros(2), torch.zeros(2)), None)
    assert torch.allclose(weight.flatten(1).norm(dim=1), torch.full((3,), EPS**-0.5))
