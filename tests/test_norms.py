"""Batch, weight and analytic normalization against torch's own layers and the formulas, re-derived in float64."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from architectures import randomize_
from members import SCALES, build, distance, inputs, layers, mean_agrees, perturb_, variance_agrees
from torch import Tensor, nn
from torch.func import functional_call

import bayesnorm
from bayesnorm import norms
from bayesnorm.norms.analytic import EPS

D = torch.float64
MEAN, VAR = torch.tensor([0.5, -1.0, 0.2], dtype=D), torch.tensor([2.0, 0.3, 1.0], dtype=D)


def unit_(net: nn.Module) -> nn.Module:
    """Weight vectors of length one."""
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.weight.div_(module.weight.flatten(1).norm(dim=1).view(-1, *[1] * (module.weight.dim() - 1)))
    return net


def batch_norm_net(momentum: float | None = 0.1, unit: bool = True) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, momentum=momentum, eps=1e-3),
        nn.ReLU(),
        nn.Conv2d(4, 5, 2, bias=False),
        nn.BatchNorm2d(5, momentum=momentum),
    )
    return (unit_(net) if unit else net).to(D)


# Batch normalization against torch's own


@pytest.mark.parametrize("momentum", [0.1, 0.37, 1.0, None])
@pytest.mark.parametrize("unit", [True, False])
def test_batch_norm_is_that_of_torch_in_outputs_gradients_and_running_statistics(momentum, unit):
    plain = randomize_(batch_norm_net(momentum, unit), corner=False)
    net = bayesnorm.convert(plain, norm="batch", scale="point")
    for step in range(4):
        x = inputs(dtype=D, seed=step)
        expected, y = plain.train()(x), net.train()(x)
        assert distance(y, expected) < 1e-10
        assert distance(net.eval()(x), plain.eval()(x)) < 1e-10
    (expected**2).sum().backward()
    (y**2).sum().backward()
    for conv, bn in ((0, 1), (3, 4)):
        norm = net[conv].norm
        bias = 0 if plain[conv].bias is None else plain[conv].bias.detach()
        sign = plain[bn].weight.detach().sign()
        assert torch.allclose(sign * norm.running_mean + bias, plain[bn].running_mean, rtol=1e-10, atol=1e-12)
        assert torch.allclose(norm.running_var, plain[bn].running_var, rtol=1e-10)
        assert norm.num_batches_tracked.item() == 4
        # torch's eps is not in units of ||w||, which leaves a part along w in its gradient: ours is the rest.
        rows, slopes = plain[conv].weight.detach().flatten(1), plain[conv].weight.grad.flatten(1)
        along = (rows * slopes).sum(1, keepdim=True) / rows.square().sum(1, keepdim=True)
        assert distance(net[conv].weight.grad.flatten(1), slopes - along * rows) < 1e-8
        assert distance(sign * net[conv].scale.s.grad, plain[bn].weight.grad) < 1e-9
        assert distance(net[conv].scale.b.grad, plain[bn].bias.grad) < 1e-9


def test_fresh_batch_norm_has_the_statistics_of_the_response_of_unit_vectors():
    plain = batch_norm_net(unit=False)
    net = bayesnorm.convert(plain, norm="batch", scale="point", preserve=False).train()
    reference = nn.BatchNorm2d(4, eps=1e-3).to(D)
    weight = plain[0].weight / plain[0].weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    for step in range(3):
        x = inputs(dtype=D, seed=step)
        expected = reference(F.conv2d(x, weight))
        assert distance(net[0](x), expected) < 1e-10
    assert torch.allclose(net[0].norm.running_mean, reference.running_mean, rtol=1e-10)
    assert torch.allclose(net[0].norm.running_var, reference.running_var, rtol=1e-10)


@pytest.mark.parametrize("spec", [bayesnorm.Batch(momentum=0.25, eps=0.5), bayesnorm.Batch()])
def test_options_of_batch_norm_win_over_those_of_the_converted_layer(spec):
    net = bayesnorm.convert(batch_norm_net(0.37), norm=spec, scale="point")
    norm = net[0].norm
    assert (norm.momentum, norm.eps) == ((0.25, 0.5) if spec.momentum else (0.37, 1e-3))


def test_batch_norm_without_affine_and_on_linear_layers_is_that_of_torch():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False)).to(D)
    net, x = bayesnorm.convert(plain, norm="batch", scale="point"), inputs("linear", 7, D)
    assert distance(net(x), plain(x)) < 1e-12
    assert distance(net.eval()(x), plain.eval()(x)) < 1e-12


# Weight and analytic normalization: y = (w.x - mu_hat) / sigma_hat * s + b


def two_layers(norm: str, scale: str) -> nn.Module:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 2), nn.BatchNorm2d(5))
    net = bayesnorm.convert(plain.to(D), norm=norm, scale=scale, preserve=False, input_stats=(MEAN, VAR))
    perturb_(net)
    with torch.no_grad():
        for layer in layers(net):
            layer.norm.center.copy_(0.3 * torch.randn(layer.norm.center.shape))
            layer.norm.spread.copy_(0.5 + torch.rand(layer.norm.spread.shape))
    return net


def relu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    a = mean / var.sqrt()
    pdf, cdf = (-(a**2) / 2).exp() / math.sqrt(2 * math.pi), torch.special.ndtr(a)
    out = mean * cdf + var.sqrt() * pdf
    return out, (mean**2 + var) * cdf + mean * var.sqrt() * pdf - out**2


def by_hand(net: nn.Module, x: Tensor, norm: str, scale: str) -> Tensor:
    mean, var = MEAN, VAR
    for layer in layers(net):
        w, s, b = layer.weight.detach(), layer.scale.s.detach(), layer.scale.b.detach()
        square = w.square().sum((2, 3))
        if norm == "weight":
            mu, sigma = torch.zeros_like(s), square.sum(1).sqrt()
        else:
            mu, sigma = w.sum((2, 3)) @ mean, (square @ (var + EPS)).sqrt()
        center, spread = layer.norm.center, layer.norm.spread
        z = (F.conv2d(x, w) - (mu + center * sigma).view(1, -1, 1, 1)) / (spread * sigma).view(1, -1, 1, 1)
        shift = b * s if scale == "bayes" else b
        x = F.relu(z * s.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1))
        mean, var = relu_moments(shift, s**2)
    return x


@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("scale", SCALES)
def test_two_layers_compute_the_formula(norm, scale):
    net, x = two_layers(norm, scale).eval(), inputs(dtype=D)
    expected = by_hand(net, x, norm, scale)
    assert distance(F.relu(net(x)), expected) < 1e-12
    for layer in layers(net):
        with torch.no_grad():
            layer.norm.spread.mul_(1.1)
    assert distance(F.relu(net(x)), expected) > 1e-2


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_training_mode_uses_the_same_statistics_as_evaluation(norm):
    net, x = two_layers(norm, "point"), inputs(dtype=D)
    assert torch.equal(net.train()(x), net.eval()(x))


def test_weight_norm_is_an_effective_weight_of_length_one_over_spread():
    net = two_layers("weight", "point")
    weight, bias = net[0].plain()
    length = weight.flatten(1).norm(dim=1)
    assert torch.allclose(length, net[0].scale.s / net[0].norm.spread, rtol=1e-12)
    expected = net[0].scale.b - net[0].norm.center / net[0].norm.spread * net[0].scale.s
    assert torch.allclose(bias, expected, rtol=1e-12)


def linear_net(n: int, scale: str = "point") -> tuple[nn.Module, Tensor]:
    """A network of linear layers, and inputs that are as independent as the propagation assumes."""
    torch.manual_seed(3)
    net = bayesnorm.convert(
        nn.Sequential(nn.Linear(3, 4)).to(D), norm="analytic", scale=scale, preserve=False, input_stats=(MEAN, VAR)
    )
    return net, MEAN + VAR.sqrt() * torch.randn(n, 3, dtype=D, generator=torch.Generator().manual_seed(4))


def test_analytic_norm_standardizes_gaussian_inputs_and_a_wrong_variance_shows():
    net, x = linear_net(20_000)
    y = net(x).detach()
    zero, one = torch.zeros(4, dtype=D), torch.ones(4, dtype=D)
    assert mean_agrees(y, zero, one)
    assert variance_agrees(y, one, 3.0)
    net.input_var.mul_(1.1)
    assert not variance_agrees(net(x).detach(), one, 3.0)
    net.input_var.div_(1.1)
    net.input_mean.add_(0.1)
    assert not mean_agrees(net(x).detach(), zero, one)


@pytest.mark.parametrize(
    ("stride", "dilation", "groups", "kernel"), [(2, 1, 2, 3), (2, 2, 1, 3), (2, 3, 1, 2), (3, 2, 2, 4)]
)
def test_analytic_norm_standardizes_a_strided_transposed_convolution(stride, dilation, groups, kernel):
    """Over the interior of the output, positions of every phase equally often, mean 0 and variance 1."""
    torch.manual_seed(5)
    conv = nn.ConvTranspose1d(2, 4, kernel, stride=stride, dilation=dilation, groups=groups).to(D)
    mean, var = MEAN[:2], VAR[:2]
    net = bayesnorm.convert(
        nn.Sequential(conv), norm="analytic", scale="point", preserve=False, input_stats=(mean, var), input_size=(2, 40)
    )
    x = torch.randn(4000, 2, 40, dtype=D, generator=torch.Generator().manual_seed(6))
    y = net(mean.view(-1, 1) + var.sqrt().view(-1, 1) * x).detach()
    inner = y[..., 10 * stride : 30 * stride]
    # A mixture over phases: the variance of sample means from the samples themselves, which are independent.
    first, second = inner.mean(2), inner.square().mean(2)
    for moment, expected in ((first, 0.0), (second, 1.0)):
        error = 5 * moment.std(0) / math.sqrt(len(moment))
        assert ((moment.mean(0) - expected).abs() <= error + EPS).all()
    assert ((second.mean(0) - 1.1).abs() > 5 * second.std(0) / math.sqrt(len(second))).all()


def test_patch_statistics_make_the_first_layer_exact():
    torch.manual_seed(7)
    x = F.avg_pool2d(torch.randn(64, 3, 12, 12, dtype=D), 3, 1) * 3 + MEAN.view(1, -1, 1, 1)
    plain = nn.Sequential(nn.Conv2d(3, 6, 3)).to(D)
    stats = bayesnorm.input_stats(x)
    spec = bayesnorm.Analytic(first_layer="patch")
    exact = bayesnorm.convert(plain, norm=spec, scale="point", preserve=False, input_stats=stats, example=x)
    rough = bayesnorm.convert(plain, norm="analytic", scale="point", preserve=False, input_stats=stats)
    var, mean = torch.var_mean(exact(x), dim=(0, 2, 3), correction=0)
    weight = plain[0].weight.detach().flatten(1)
    response = plain[0](x) - plain[0].bias.view(1, -1, 1, 1)
    measured = response.var((0, 2, 3), correction=0)
    assert torch.allclose(mean, torch.zeros_like(mean), atol=1e-9)
    # eps is in units of ||w||^2
    assert torch.allclose(var, measured / (measured + EPS * weight.square().sum(1)), rtol=1e-9)
    assert (rough(x).var((0, 2, 3), correction=0) - 1).abs().max() > 0.1


# The propagation is inside autograd


def three_layers(scale: str = "point") -> nn.Module:
    torch.manual_seed(8)
    plain = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Conv1d(3, 2, 2), nn.SiLU(), nn.MaxPool1d(2), nn.Conv1d(2, 2, 1), nn.Tanh()
    ).to(D)
    net = bayesnorm.convert(plain, norm="analytic", scale=scale, preserve=False, input_stats=(MEAN[:2], VAR[:2]))
    return perturb_(net)


@pytest.mark.parametrize("scale", SCALES)
def test_gradcheck_through_the_propagation_of_three_layers(scale):
    net = three_layers(scale)
    x = torch.randn(2, 2, 6, dtype=D, generator=torch.Generator().manual_seed(9))
    names = [name for name, _ in net.named_parameters()]

    def function(*parameters: Tensor) -> Tensor:
        net.noise_step.zero_()
        return functional_call(net, dict(zip(names, parameters, strict=True)), x)

    assert torch.autograd.gradcheck(function, tuple(p.detach().clone().requires_grad_() for p in net.parameters()))


def test_gradient_flows_into_earlier_layers_through_the_statistics_alone():
    net = three_layers()
    last = layers(net)[-1]
    x = torch.randn(2, 2, 3, dtype=D, generator=torch.Generator().manual_seed(9))
    last(x).sum().backward()  # the last layer by itself: the others only enter through its statistics
    assert layers(net)[1].scale.s.grad.abs().min() > 1e-6
    assert layers(net)[1].scale.b.grad.abs().min() > 1e-6
    assert layers(net)[0].scale.s.grad is None  # the second normalization hands on its own moments, whatever comes in
    assert layers(net)[1].weight.grad is None


def test_statistics_do_not_depend_on_the_batch_or_the_size_of_the_image():
    net = build("analytic", "point", dtype=D).eval()
    small, large = inputs(dtype=D), torch.randn(1, 3, 20, 17, dtype=D, generator=torch.Generator().manual_seed(1))
    large[..., :6, :6] = small[:1]
    assert distance(net(large)[..., :3, :3], net(small[:1])[..., :3, :3]) < 1e-12


# What a norm refuses


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: bayesnorm.Batch(momentum=1.5),
        lambda: bayesnorm.Batch(eps=-1e-5),
        lambda: bayesnorm.Analytic(first_layer="covariance"),
        lambda: norms.parse("layer"),
    ],
)
def test_wrong_option_is_refused_with_its_value(wrong):
    with pytest.raises(ValueError, match=r"1\.5|-1e-05|covariance|layer"):
        wrong()


def test_copy_of_a_norm_is_independent():
    net = build("batch", "point")
    twin = copy.deepcopy(net)
    net(inputs())
    assert not torch.equal(layers(net)[0].norm.running_mean, layers(twin)[0].norm.running_mean)
