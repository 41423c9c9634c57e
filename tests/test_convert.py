"""Conversion: the function is preserved, and so is everything else that a network is.

No conversion of an architecture is told the size of its input: what the guesses find is tested with it.
"""

import copy
import math
import random

import networks
import numpy as np
import pytest
import torch
from architectures import CASES, randomize_
from architectures.stochastic_depth import StochasticDepth
from members import KINDS
from networks import DIAGONAL, MEMBERS, NORMS, TOLERANCE, convert, input_moments, layers, normal, plain, relative
from scipy import stats
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import bayesnorm
from bayesnorm.layers import ChannelNorm, NormLayer
from bayesnorm.moments.core import Moments
from bayesnorm.norms.analytic import EPS

PUBLISHED = (
    "vgg16_bn",
    "resnet50",
    "preact_resnet56",
    "densenet121",
    "mobilenet_v2",
    "efficientnet_b0",
    "shufflenet_v2",
    "inception_v3",
    "convnext_tiny",
    "unet",
)
FURTHER = ("vgg16", "resnet18", "mobilenet_v3_small", "regnet_y_400mf")
SMALL = tuple(name for name, case in CASES.items() if not case.published and name != networks.UNCALLED)
MEMBER = pytest.mark.parametrize(("norm", "scale"), MEMBERS)
X = normal(4, 3, 8, 8)


def check_equivalence(name, norm, scale, dtype, randomized=True):
    net, x, y = networks.reference(name, dtype, randomized)
    got = convert(net, norm, scale, x)
    assert layers(got)
    assert not any(isinstance(m, _BatchNorm) for m in got.modules())
    with torch.no_grad():
        assert relative(got(x), y) < TOLERANCE[dtype]
        assert relative(bayesnorm.fold(got)(x), y) < TOLERANCE[dtype]
    return True


# The function.


@MEMBER
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_network_computes_the_same_converted_and_folded(name, norm, scale):
    assert check_equivalence(name, norm, scale, torch.float32)


@pytest.mark.parametrize(("norm", "scale"), DIAGONAL)
@pytest.mark.parametrize("name", FURTHER)
def test_further_published_network_computes_the_same_converted_and_folded(name, norm, scale):
    assert check_equivalence(name, norm, scale, torch.float32)


@pytest.mark.parametrize(("norm", "scale"), DIAGONAL)
@pytest.mark.parametrize("name", ["vgg16", "resnet50", "mobilenet_v2", "convnext_tiny", "unet"])
def test_published_network_computes_the_same_in_float64(name, norm, scale):
    assert check_equivalence(name, norm, scale, torch.float64)


def test_a_hundred_layers_are_as_exact_as_ten():
    assert check_equivalence("preact_resnet110", "analytic", "bayes", torch.float32)


@pytest.mark.parametrize(("norm", "scale"), DIAGONAL)
def test_residual_branches_that_start_at_zero_are_preserved(norm, scale):
    net, _, _ = networks.reference("resnet50_zero_init", randomized=False)
    assert sum(bool((m.weight == 0).all()) for m in net.modules() if isinstance(m, _BatchNorm)) == 16
    check_equivalence("resnet50_zero_init", norm, scale, torch.float32, randomized=False)


@MEMBER
@pytest.mark.parametrize("name", SMALL)
def test_small_network_computes_the_same_converted_and_folded(name, norm, scale):
    assert check_equivalence(name, norm, scale, torch.float32)


@pytest.mark.parametrize(("norm", "scale"), DIAGONAL)
@pytest.mark.parametrize("name", SMALL)
def test_small_network_computes_the_same_in_float64(name, norm, scale):
    assert check_equivalence(name, norm, scale, torch.float64)


@pytest.mark.parametrize("norm", NORMS)
def test_twin_a_ten_percent_error_of_one_scale_fails_the_equivalence(norm):
    net, x, y = networks.reference("resnet50")
    got = convert(net, norm, "point")
    list(layers(got).values())[len(layers(got)) // 2].scale.s.data *= 1.1
    with torch.no_grad():
        assert relative(got(x), y) > 10 * TOLERANCE[torch.float32]


@torch.no_grad()
def put_corners_(net):
    """Zero, tiny negative and ordinary negative gamma, a running variance of 0, an all-zero filter."""
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            channels = module.num_features
            module.weight[1 % channels] = -1e-6
            module.weight[2 % channels] = -0.7
            module.running_var[2 % channels] = 0.0
            module.weight[0] = 0.0
        elif isinstance(module, nn.modules.conv._ConvTransposeNd):
            module.weight[-module.in_channels // module.groups :, -1] = 0.0
        elif isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
            module.weight[-1] = 0.0
    return net


@MEMBER
@pytest.mark.parametrize("kind", KINDS)
def test_dead_flat_and_negative_channels_of_every_layer_type_are_exact(kind, norm, scale):
    torch.manual_seed(0)
    net = put_corners_(randomize_(KINDS[kind].make(), corner=False)).eval()
    for dtype in (torch.float32, torch.float64):
        net, x = net.to(dtype), normal(4, *KINDS[kind].size, dtype=dtype)
        got = convert(net, norm, scale, x, input_size=KINDS[kind].size)
        with torch.no_grad():
            y = net(x)
            assert relative(got(x), y) < TOLERANCE[dtype]
            assert relative(bayesnorm.fold(got)(x), y) < TOLERANCE[dtype]
        assert all(t.isfinite().all() for t in got.state_dict().values())


@MEMBER
def test_vanishing_filters_are_exact(norm, scale):
    net = plain()
    with torch.no_grad():
        net[0].weight[:4] *= torch.tensor([1e-15, 1e-20, 1e-25, 1e-35]).view(-1, 1, 1, 1)
        net[1].running_var[:4] = 1e-30
    got = convert(net, norm, scale)
    assert relative(got(X), net(X)) < 1e-4
    assert relative(bayesnorm.fold(got)(X), net(X)) < 1e-4


@pytest.mark.parametrize("eps", [1e-7, 1e-3, 0.5])
def test_another_eps_of_batch_norm_preserves_the_output(eps):
    net = plain()
    with torch.no_grad():
        net[1].running_var[:3] = torch.tensor([0.0, 1e-6, 1e-2])
    got = convert(net, bayesnorm.Batch(eps=eps), "point")
    assert all(layer.norm.eps == eps for layer in layers(got).values())
    assert relative(got(X), net(X)) < 1e-4


def test_another_momentum_of_batch_norm_is_taken_and_none_keeps_the_networks():
    net = plain()
    net[1].momentum = 0.3
    moved = convert(net, bayesnorm.Batch(momentum=0.7), "point")
    kept = convert(net, "batch", "point")
    assert [layer.norm.momentum for layer in layers(moved).values()] == [0.7, 0.7]
    assert [layer.norm.momentum for layer in layers(kept).values()] == [0.3, 0.1]


@pytest.mark.parametrize("momentum", [0.1, 0.6, None])
def test_batch_and_point_train_as_the_batch_norm_network_did(momentum):
    net = plain()
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum
            module.num_batches_tracked.fill_(7)
    net.train()
    got = convert(net, "batch", "point")
    for step in range(3):
        x = normal(6, 3, 8, 8, seed=step)
        assert relative(got(x), net(x)) < 1e-5
    assert relative(got.eval()(X), net.eval()(X)) < 1e-5


# Starting afresh, and from a network without BatchNorm.


@MEMBER
@pytest.mark.parametrize("has_bn", [True, False])
def test_without_preserve_every_layer_starts_with_unit_scale_and_zero_bias(norm, scale, has_bn):
    net = plain() if has_bn else nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    got = bayesnorm.convert(net, norm=norm, scale=scale, preserve=False)
    assert len(layers(got)) == 2
    for layer in layers(got).values():
        gain, shift = layer.scale.folded()
        assert (gain == 1).all()
        assert (shift == 0).all()
        assert (layer.norm.spread == 1).all()
        assert (layer.norm.center == 0).all()
        if norm == "batch":
            assert (layer.norm.running_mean == 0).all()
            assert (layer.norm.running_var == 1).all()
        if scale == "bayes":
            assert torch.allclose(layer.scale.spread(), torch.tensor(0.1))


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_without_preserve_a_response_is_normalized_by_its_own_statistics(norm):
    net = nn.Sequential(nn.Conv2d(3, 8, 3)).eval()
    mean, var = torch.tensor([0.5, -1.0, 0.0]), torch.tensor([1.0, 4.0, 0.25])
    got = convert(net, norm, "point", preserve=False, input_stats=(mean, var))
    w = net[0].weight.detach().double()
    mu = (w.sum((2, 3)) * mean).sum(1) if norm == "analytic" else torch.zeros(8, dtype=torch.float64)
    square = (w.square().sum((2, 3)) * (var + EPS if norm == "analytic" else 1.0)).sum(1)
    response = nn.functional.conv2d(X.double(), w)
    expected = (response - mu.view(-1, 1, 1)) / square.sqrt().view(-1, 1, 1)
    assert relative(got(X), expected) < 1e-5


@pytest.mark.parametrize("scale", ["point", "bayes"])
def test_batch_norm_added_to_a_network_without_one_needs_an_example(scale):
    net, x, y = networks.reference("vgg16")
    with pytest.raises(ValueError, match=r"running statistics.*example=.*preserve=False"):
        bayesnorm.convert(net, norm="batch", scale=scale)
    got = bayesnorm.convert(net, norm="batch", scale=scale, example=x)
    with torch.no_grad():
        assert relative(got(x), y) < 1e-4
        assert relative(got(x + 1), net(x + 1)) < 1e-4  # the running statistics are constants: also on other inputs
    first = next(iter(layers(got).values()))
    response = nn.functional.conv2d(x.double(), first.weight.double(), padding=first.padding)
    unit = response / first.weight.double().flatten(1).norm(dim=1).view(-1, 1, 1)
    measured = unit * first.norm.spread.abs().view(-1, 1, 1)
    assert torch.allclose(first.norm.running_mean.double(), measured.mean((0, 2, 3)), atol=1e-5)
    variance = measured.var((0, 2, 3), correction=0)
    assert torch.allclose(first.norm.running_var.double(), variance, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_batch_norm_without_running_statistics_is_measured_on_the_example(norm):
    net = plain()
    for position in (1, 4):
        net[position] = nn.BatchNorm2d(8, track_running_stats=False)
    randomize_(net).eval()
    with pytest.raises(ValueError, match=r"'0'.*no running statistics.*example="):
        bayesnorm.convert(net, norm=norm, scale="point")
    got = bayesnorm.convert(net, norm=norm, scale="point", example=X)
    assert relative(got(X), net(X)) < 1e-4
    assert bayesnorm.convert(net, norm=norm, scale="point", preserve=False) is not None


@pytest.mark.parametrize("norm", NORMS)
def test_bare_batch_norm_keeps_the_precision_of_the_network(norm):
    net = nn.Sequential(nn.Tanh(), nn.BatchNorm2d(3, affine=False, track_running_stats=False), nn.Conv2d(3, 4, 3))
    net, x = net.double().eval(), X.double()
    got = bayesnorm.convert(net, norm=norm, scale="bayes", example=x)
    assert relative(got(x), net(x)) < 1e-10


@MEMBER
@pytest.mark.parametrize("options", [{"affine": False}, {"momentum": None}, {"eps": 0.1}, {"momentum": 0.5}])
def test_every_kind_of_batch_norm_converts(norm, scale, options):
    net = randomize_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, **options), nn.ReLU())).eval()
    got = convert(net, norm, scale)
    assert relative(got(X), net(X)) < 1e-4
    assert isinstance(got[0].scale.s, nn.Parameter)
    if norm == "batch":
        assert (got[0].norm.momentum, got[0].norm.eps) == (net[1].momentum, net[1].eps)


@MEMBER
@pytest.mark.parametrize("name", ["preact_tiny", "bias_before_norm"])
def test_sync_batch_norm_converts_on_cpu(norm, scale, name):
    net = nn.SyncBatchNorm.convert_sync_batchnorm(networks.build(name)).eval()
    x = normal(2, 3, 16, 16)
    got = convert(net, norm, scale)
    assert not any(isinstance(m, _BatchNorm) for m in got.modules())
    assert relative(got(x), net(x)) < 1e-4
    assert relative(bayesnorm.fold(got)(x), net(x)) < 1e-4
    assert norm != "batch" or all(layer.norm.sync for layer in layers(got).values())


# What is handed on.


@MEMBER
def test_a_converted_layer_hands_on_the_true_moments(norm, scale):
    net = plain()
    got = convert(net, norm, scale)
    conv, bn, layer = net[0], net[1], got[0]
    gamma, beta = bn.weight.detach(), bn.bias.detach()
    m = Moments(torch.tensor([0.3, -0.5, 1.0]).view(1, 3, 1, 1), torch.tensor([1.0, 2.0, 0.5]).view(1, 3, 1, 1))
    m = m.sized(torch.Size((2, 3, 8, 8)))
    mean, var = beta, gamma**2
    if norm == "weight":
        factor = gamma / (bn.running_var + bn.eps).sqrt()
        weight = conv.weight.detach()
        mean = ((weight.sum((2, 3)) * m.mean.flatten()).sum(1) + conv.bias.detach() - bn.running_mean) * factor + beta
        var = (weight.square().sum((2, 3)) * m.var.flatten()).sum(1) * factor**2
    handed = layer.output_moments(m, (2, 8, 6, 6))
    assert handed.mean.shape == (1, 8, 1, 1)
    assert torch.allclose(handed.mean.flatten(), mean, rtol=1e-5, atol=1e-6)
    assert torch.allclose(handed.var.flatten(), var, rtol=1e-5, atol=1e-12)
    if norm != "weight":
        alone = layer.output_moments(None, (2, 8, 6, 6))  # whatever comes in
        assert torch.equal(alone.mean, handed.mean)
        assert torch.equal(alone.var, handed.var)


@pytest.mark.parametrize("scale", ["point", "noise", "bayes"])
def test_the_next_layer_receives_the_rectified_true_moments(scale):
    net = plain(corner=False)
    got = convert(net, "analytic", scale)
    m, s = (t.detach().double().numpy() for t in (net[1].bias, net[1].weight.abs()))
    a = m / s
    mean = m * stats.norm.cdf(a) + s * stats.norm.pdf(a)
    var = (m**2 + s**2) * stats.norm.cdf(a) + m * s * stats.norm.pdf(a) - mean**2
    received = [t.detach().double().numpy() for t in input_moments(got[3])]
    np.testing.assert_allclose(received[0], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(received[1], var, rtol=1e-4, atol=1e-6)
    assert not np.allclose(received[1], 1.1 * var, rtol=1e-4)  # the twin
    # constants in units of sigma_hat: a change of the statistics moves the calibrated ones along
    mu, sigma = got[3].norm.statistics(got[3].weight, got[3].geometry, input_moments(got[3]))
    std = (net[4].running_var + net[4].eps).sqrt()
    assert torch.allclose((got[3].norm.spread * sigma).abs(), std, rtol=1e-5)
    centered = net[4].running_mean - net[3].bias
    assert torch.allclose(mu + got[3].norm.center * sigma, centered, rtol=1e-4, atol=1e-5)


@MEMBER
def test_converted_scales_are_the_absolute_gammas(norm, scale):
    net = plain()
    got = convert(net, norm, scale)
    for conv, bn in ((0, 1), (3, 4)):
        gain, shift = got[conv].scale.folded()
        assert torch.equal(gain, net[bn].weight.abs())
        assert torch.allclose(shift, net[bn].bias, rtol=1e-6)


# Everything else that a network is.


@MEMBER
def test_class_methods_and_properties_stay(norm, scale):
    net, x, y = networks.reference("extra_methods")
    got = convert(net, norm, scale)
    assert type(got) is type(net)
    assert got.temperature == net.temperature
    features = got.features(x)
    assert relative(features, net.features(x)) < 1e-4
    assert relative(got.head(features), y) < 1e-4
    assert "forward" not in vars(got)


def listen(net, names, log):
    """Hooks of every kind; what passes is kept."""
    for name in names:
        module = net.get_submodule(name)
        module.register_forward_pre_hook(lambda m, args, name=name: log.append((name, "in", args[0].detach())))
        module.register_forward_hook(lambda m, args, out, name=name: log.append((name, "out", out.detach())))
        module.register_full_backward_hook(lambda m, g, out, name=name: log.append((name, "back", out[0].detach())))


@MEMBER
@pytest.mark.parametrize("everywhere", [False, True], ids=["containers_and_norms", "everywhere"])
def test_hooks_fire_as_often_and_see_the_same(norm, scale, everywhere):
    net, log = networks.build("nested_containers"), []
    listens = [
        name for name, m in net.named_modules() if type(m) not in (nn.ModuleDict, nn.ModuleList)
        and (everywhere or not isinstance(m, nn.Conv2d))
    ]  # fmt: skip
    listen(net, listens, log)
    got = convert(net, norm, scale)
    kinds = {name: type(got.get_submodule(name)) for name in listens}
    assert not everywhere or nn.Conv2d in kinds.values()  # a hook on a convolution sees its own response
    x, seen = normal(2, 3, 16, 16).requires_grad_(), []
    for model in (net, got):
        log.clear()
        model(x).sum().backward()
        seen.append(list(log))
    expected, actual = seen
    assert [entry[:2] for entry in actual] == [entry[:2] for entry in expected]
    assert len(actual) == 3 * len(listens)
    for (name, moment, value), (_, _, before) in zip(actual, expected, strict=True):
        if not (moment == "in" and isinstance(net.get_submodule(name), _BatchNorm)):  # its convolution is a part of it
            assert torch.allclose(value, before, rtol=1e-4, atol=1e-4 * before.abs().max().item()), (name, moment)


@MEMBER
def test_shared_and_aliased_modules_stay_one(norm, scale):
    aliased, shared = networks.build("aliased_module"), networks.build("shared_block")
    before = {name: id(t) for name, t in aliased.named_parameters(remove_duplicate=False)}
    got = bayesnorm.convert(aliased, norm=norm, scale=scale, inplace=True)
    assert got is aliased
    assert got.conv_alias is got.conv
    assert got.norm_alias is got.norm
    assert isinstance(got.conv, NormLayer)
    assert id(got.conv.weight) == before["conv.weight"]
    assert not any(t.is_meta for t in got.state_dict().values())
    twice = convert(shared, norm, scale)
    assert len(layers(twice)) == 2


@pytest.mark.parametrize("norm", NORMS)
def test_modules_with_tied_weights_stay_tied(norm):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    net = Tied().eval()
    got = convert(net, norm, "point", X)
    assert got.second.weight is got.first.weight
    assert len(layers(got)) == 2
    assert relative(got(X), net(X)) < 1e-4


@MEMBER
def test_train_flags_stay_per_module(norm, scale):
    net = plain().train()
    net[1].eval()  # a frozen BatchNorm
    net[5].eval()
    flags = {name: m.training for name, m in net.named_modules()}
    got = convert(net, norm, scale)
    assert {name: m.training for name, m in got.named_modules() if name in flags} == flags
    assert {name: m.training for name, m in net.named_modules()} == flags
    assert (got[0].norm.training, got[3].norm.training) == (False, True)
    assert (got[0].scale.training, got[3].scale.training) == (True, True)


@MEMBER
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_stays(norm, scale, dtype):
    net = plain(corner=False).to(dtype)
    got = convert(net, norm, scale)
    assert {p.dtype for p in got.parameters()} == {dtype}
    y, reference = got(X.to(dtype)), net.float()(X)
    assert y.dtype == dtype
    assert relative(y.float(), reference) < 8 * torch.finfo(dtype).eps + 1e-5  # a few roundings of a few layers


@MEMBER
def test_frozen_parameters_stay_frozen(norm, scale):
    net = plain()
    net[0].weight.requires_grad_(False)
    net[4].bias.requires_grad_(False)
    got = convert(net, norm, scale)
    flags = {name: p.requires_grad for name, p in got.named_parameters()}
    assert not flags.pop("0.weight")
    assert not flags.pop("3.scale.b")
    assert all(flags.values())


@MEMBER
def test_a_frozen_layer_gets_no_parameter_that_moves_its_mean(norm, scale):
    """What is new of it is frozen too; only the size of the noise can be learned."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 3)).requires_grad_(False)
    got = bayesnorm.convert(net, norm=norm, scale=scale, example=X)
    learned = {name for name, p in got.named_parameters() if p.requires_grad}
    assert learned == ({"0.scale.u", "2.scale.u"} if scale == "bayes" else set())


@MEMBER
def test_inplace_keeps_parameters_and_known_gives_what_the_optimizer_lacks(norm, scale):
    net = plain().train()
    objects = dict(net.named_parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    got = bayesnorm.convert(net, norm=norm, scale=scale, inplace=True)
    assert got is net
    assert got[0].weight is objects["0.weight"]
    assert got[3].scale.s is objects["4.weight"]
    assert got[3].scale.b is objects["4.bias"]
    known = {id(p) for p in objects.values()}
    lacking = {id(p) for p in got.parameters()} - known
    groups = bayesnorm.param_groups(got, lr=0.01, known=optimizer)
    assert {id(p) for group in groups for p in group["params"]} == lacking
    assert len(lacking) == (2 if scale == "bayes" else 0)
    for group in groups:
        optimizer.add_param_group(group)
    before = [p.detach().clone() for p in got.parameters()]
    got(X).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(got.parameters(), before, strict=True))


@pytest.mark.parametrize("norm", NORMS)
def test_inplace_on_a_network_without_batch_norm_lacks_only_what_is_new(norm):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False))
    bias, optimizer = net[0].bias, torch.optim.SGD(net.parameters(), lr=0.1)
    bayesnorm.convert(net, norm=norm, scale="bayes", inplace=True, example=X)
    assert net[0].scale.b is bias
    groups = {g["name"]: g["params"] for g in bayesnorm.param_groups(net, lr=0.1, known=optimizer)}
    assert {id(p) for p in groups["scales"]} == {id(net[0].scale.s), id(net[2].scale.s), id(net[2].scale.b)}
    assert {id(p) for p in groups["variances"]} == {id(net[0].scale.u), id(net[2].scale.u)}
    assert set(groups) == {"scales", "variances"}


def snapshot(net):
    """All that a conversion could touch."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        name: (type(m), m.training, set(vars(m)), [list(getattr(m, h).items()) for h in hooks])
        for name, m in net.named_modules()
    }


@MEMBER
@pytest.mark.parametrize("name", ["functional_dropout", "aliased_module", "norm_without_affine", "mlp"])
def test_the_original_is_left_bitwise_as_it_was(norm, scale, name):
    net = networks.build(name).train()
    net.register_forward_hook(lambda *_: None)
    x = normal(2, *CASES[name].input_size)
    state, before = copy.deepcopy(net.state_dict()), snapshot(net)
    objects = {key: id(t) for key, t in net.state_dict(keep_vars=True).items()}
    torch.manual_seed(3)
    convert(net, norm, scale, x)
    after = net.state_dict(keep_vars=True)
    assert {key: id(t) for key, t in after.items()} == objects
    assert all(torch.equal(t, state[key]) for key, t in after.items())
    assert snapshot(net) == before


@MEMBER
def test_conversion_takes_one_number_from_the_generator_for_its_key(norm, scale):
    net = networks.build("functional_dropout").train()
    torch.manual_seed(3)
    key = torch.randint(2**63 - 1, (), dtype=torch.int64)
    rng, python = torch.get_rng_state(), random.getstate()
    torch.manual_seed(3)
    got = bayesnorm.convert(net, norm=norm, scale=scale, example=normal(4, 3, 16, 16))
    assert torch.equal(got.noise_key, key)
    assert torch.equal(torch.get_rng_state(), rng)
    assert random.getstate() == python


@MEMBER
@pytest.mark.parametrize("inplace", [False, True])
def test_conversion_is_idempotent(norm, scale, inplace):
    net = convert(networks.build("preact_tiny"), norm, scale)
    x = normal(2, 3, 16, 16)
    state, y, rng = copy.deepcopy(net.state_dict()), net(x), torch.get_rng_state()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    again = bayesnorm.convert(net, norm=norm, scale=scale, inplace=inplace)
    assert (again is net) == inplace
    assert list(again.state_dict()) == list(state)
    assert all(torch.equal(t, state[key]) for key, t in again.state_dict().items())
    assert torch.equal(again(x), y)
    assert torch.equal(torch.get_rng_state(), rng)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in again.modules()] == hooks


@pytest.mark.parametrize(
    ("norm", "scale", "other", "message"),
    [
        (
            "weight",
            bayesnorm.Bayes(prior=10.0),
            {"scale": bayesnorm.Bayes(prior=1.0)},
            r"Bayes\(prior=10\.0\), not 1\.0",
        ),
        ("weight", bayesnorm.Bayes(sigma_init=0.3), {"scale": "bayes"}, r"Bayes\(sigma_init=0\.3\), not 0\.1"),
        ("weight", "noise", {"scale": bayesnorm.Noise(sigma_v=0.5)}, r"Noise\(sigma_v=0\.05\), not 0\.5"),
        ("batch", "point", {"norm": bayesnorm.Batch(momentum=0.3)}, r"Batch\(momentum=0\.1\), not 0\.3"),
        ("batch", "point", {"norm": bayesnorm.Batch(eps=1e-3)}, r"Batch\(eps=1e-05\), not 0\.001"),
        (
            "analytic",
            "point",
            {"norm": bayesnorm.Analytic(first_layer="patch"), "example": X},
            r"Analytic\(first_layer='moments'\), not 'patch'",
        ),
    ],
)
def test_other_options_of_a_second_conversion_are_refused_with_both_values(norm, scale, other, message):
    net = convert(plain(), norm, scale)
    with pytest.raises(ValueError, match=rf"'0' is normalized already, with {message}: .*fold\(\)"):
        bayesnorm.convert(net, **({"norm": norm, "scale": scale} | other))
    assert bayesnorm.convert(net, norm=norm, scale=scale, inplace=True) is net


def test_options_in_force_are_no_others():
    net = convert(plain(), bayesnorm.Batch(eps=1e-3), bayesnorm.Noise(sigma_u=0.2))
    with torch.no_grad():
        net[0].scale.sigma_u.fill_(0.7)  # as bn_noise.apply_ does
    again = bayesnorm.convert(net, norm=bayesnorm.Batch(momentum=0.1), scale=bayesnorm.Noise(sigma_u=0.2))
    assert (again[0].scale.sigma_u == 0.7).all()


def test_other_input_stats_of_a_second_conversion_are_taken_and_the_same_change_nothing():
    net = convert(plain(), "analytic", "bayes", input_stats=(0.0, 1.0))
    state = copy.deepcopy(net.state_dict())
    same = bayesnorm.convert(net, norm="analytic", scale="bayes", input_stats=(0.0, [1.0, 1.0, 1.0]))
    assert all(torch.equal(t, state[key]) for key, t in same.state_dict().items())
    got = bayesnorm.convert(net, norm="analytic", scale="bayes", input_stats=(5.0, [4.0, 1.0, 9.0]))
    received = input_moments(got[0])
    assert torch.equal(received[0], torch.full((3,), 5.0))
    assert torch.equal(received[1], torch.tensor([4.0, 1.0, 9.0]))
    assert not torch.equal(got[0].norm.spread, net[0].norm.spread)
    assert torch.equal(got.noise_key, net.noise_key)
    assert relative(got(X), net(X)) < 1e-5
    assert relative(bayesnorm.fold(got)(X), net(X)) < 1e-5


def test_input_stats_of_a_second_conversion_reach_a_network_around_the_first():
    net = nn.Sequential(convert(plain(), "analytic", "point")).eval()
    got = bayesnorm.convert(net, norm="analytic", scale="point", input_stats=(5.0, 4.0))
    assert torch.equal(input_moments(got[0][0])[0], torch.full((3,), 5.0))
    assert relative(got(X), net(X)) < 1e-5


@pytest.mark.parametrize("norm", NORMS)
def test_networks_of_converted_parts_convert_and_fold(norm):
    parts = [
        randomize_(nn.Sequential(nn.Conv2d(c, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), seed=i).eval()
        for i, c in enumerate((3, 8, 8))
    ]
    net = nn.Sequential(*parts)
    first, second = (convert(part, norm, "bayes") for part in parts[:2])
    got = convert(nn.Sequential(first, second, parts[2]), norm, "bayes", input_size=(3, 8, 8))
    assert len(layers(got)) == 3
    assert relative(got(X), net(X)) < 1e-4
    folded = bayesnorm.fold(got)
    assert relative(folded(X), net(X)) < 1e-4
    assert not list(folded.buffers())
    with bayesnorm.sampling(got):
        draws = got(X) - got(X)
    assert draws.abs().max() > 0


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


FAILURES = {
    "negative variance": (plain, {"norm": "analytic", "input_stats": (0.0, -1.0)}, "negative"),
    "wrong size": (plain, {"norm": "analytic", "input_stats": ([0.0, 1.0], 1.0)}, "2 values"),
    "patch without example": (plain, {"norm": bayesnorm.Analytic(first_layer="patch")}, "example="),
    "no rule": (lambda: networks.with_operation(Bessel()), {"norm": "analytic"}, "no moment rule"),
    "no statistics": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3)), {"norm": "batch"}, "running statistics"),
    "does not run": (plain, {"norm": "weight", "input_size": (4, 8, 8)}, "did not run"),
    "pattern": (plain, {"norm": "weight", "include": "nothing"}, "matches no module"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_conversion_that_fails_leaves_the_network_as_it_was(failure):
    build, options, message = FAILURES[failure]
    net = build().eval()
    state, before, y = copy.deepcopy(net.state_dict()), snapshot(net), net(X)
    with pytest.raises(ValueError, match=message):
        bayesnorm.convert(net, scale="bayes", inplace=True, **options)
    assert snapshot(net) == before
    assert list(net.state_dict()) == list(state)
    assert all(torch.equal(t, state[key]) for key, t in net.state_dict().items())
    assert torch.equal(net(X), y)


# Training-time behaviour.


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("functional_dropout", "weight"),
        ("functional_dropout", "analytic"),
        ("efficientnet_b0", "analytic"),
        ("convnext_tiny", "weight"),
        ("inception_v3", "analytic"),
    ],
)
def test_dropout_stochastic_depth_and_auxiliary_heads_act_in_training(name, norm):
    net, x, y = networks.reference(name)
    got = convert(net, norm, "point")
    folded = bayesnorm.fold(got).train()  # the plain network: its layers do the same in both modes
    assert not any(isinstance(m, _BatchNorm) for m in folded.modules())
    outputs = []
    for model in (folded, got.train()):
        torch.manual_seed(5)
        with torch.no_grad():
            out = model(x)
        outputs.append(out if isinstance(out, tuple) else (out,))
    assert len(outputs[0]) == (2 if name == "inception_v3" else 1)
    for expected, actual in zip(*outputs, strict=True):
        assert relative(actual, expected) < 1e-4
    assert relative(outputs[1][0], y) > 1e-2  # not what evaluation computes
    if name in ("efficientnet_b0", "convnext_tiny"):
        assert any(isinstance(m, StochasticDepth) for m in got.modules())


@MEMBER
def test_control_flow_on_shapes_stays_python(norm, scale):
    net, _, _ = networks.reference("shape_control_flow")
    got = convert(net, norm, scale)
    for size in ((2, 3, 16, 16), (1, 3, 16, 16), (3, 3, 40, 40), (2, 3, 8, 8)):
        x = normal(*size)
        with torch.no_grad():
            assert relative(got(x), net(x)) < 1e-4


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_that_training_bypasses_stays_bypassed(norm):
    class Bypass(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.conv(x)
            return y if self.training else self.norm(y)

    net = randomize_(Bypass()).train()
    got = convert(net, norm, "point")
    assert relative(got(X), net(X)) < 1e-4
    assert relative(got.eval()(X), net.eval()(X)) < 1e-4


@pytest.mark.parametrize("norm", NORMS)
def test_layers_take_keyword_arguments_as_before(norm):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
            self.up, self.norm_up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.norm(input=self.down(input=x))
            return self.norm_up(self.up(torch.relu(y), output_size=x.shape[-2:]))

    net = randomize_(Keywords()).eval()
    got = convert(net, norm, "point")
    for side in (8, 9):  # each asks for another output padding
        x = normal(2, 3, side, side)
        assert got(x).shape == (2, 4, side, side)
        assert relative(got(x), net(x)) < 1e-4


# Statistics of the input.


@pytest.mark.parametrize("vectors", [False, True])
def test_input_stats_reach_the_first_layer(vectors):
    mean, var = ([0.5, -1.0, 2.0], [1.0, 4.0, 0.25]) if vectors else (0.5, 4.0)
    got = convert(plain(), "analytic", "point", input_stats=(torch.tensor(mean), torch.tensor(var)))
    as_lists = convert(plain(), "analytic", "point", input_stats=(mean, var))
    for net in (got, as_lists):
        received = input_moments(net[0])
        assert torch.equal(received[0], torch.tensor(mean).expand(3))
        assert torch.equal(received[1], torch.tensor(var).expand(3))
        assert {"input_mean", "input_var"} <= set(net.state_dict())


def test_input_stats_none_means_standardized_inputs():
    received = input_moments(convert(plain(), "analytic", "point")[0])
    assert torch.equal(received[0], torch.zeros(3))
    assert torch.equal(received[1], torch.ones(3))


def test_input_stats_of_data_go_into_convert():
    x = normal(50, 3, 4, 4) * 2 + 1
    got = convert(plain(), "analytic", "point", input_stats=bayesnorm.input_stats(x))
    received = input_moments(got[0])
    assert torch.allclose(received[0], x.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(received[1], x.var((0, 2, 3), correction=0), rtol=1e-5)


def test_several_inputs_have_statistics_of_their_own():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)

        def forward(self, x, y):
            return self.a(x) + self.b(y)

    inputs = (normal(6, 3), normal(6, 5))
    options = {"norm": "analytic", "scale": "point", "example": inputs}
    got = bayesnorm.convert(Two(), input_stats=[(1.0, 2.0), (3.0, 4.0)], **options)
    assert [t[0].item() for layer in (got.a, got.b) for t in input_moments(layer)] == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="1 pairs for a network of 2 inputs"):
        bayesnorm.convert(Two(), input_stats=[(1.0, 2.0)], **options)


def correlated(n=64):
    x = nn.functional.avg_pool2d(normal(n, 3, 14, 14), 5, 1) * 5
    return x + torch.tensor([1.0, -2.0, 0.5]).view(1, 3, 1, 1)


@pytest.mark.parametrize("first", [nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, (2, 3), stride=2, dilation=(1, 2), bias=False)])
def test_patch_statistics_make_the_first_layer_exact(first):
    x = correlated()
    net = nn.Sequential(first, nn.ReLU(), nn.Conv2d(8, 4, 2)).eval()
    options = {"norm": bayesnorm.Analytic(first_layer="patch"), "scale": "point", "example": x}
    got = bayesnorm.convert(net, preserve=False, **options)
    response = nn.functional.conv2d(x.double(), first.weight.double(), None, first.stride, 0, first.dilation)
    var = response.var((0, 2, 3), correction=0)
    ratio = EPS * first.weight.double().square().sum((1, 2, 3)) / var
    z = got[0](x)
    assert torch.allclose(z.std((0, 2, 3), correction=0).double(), (1 / (1 + ratio)).sqrt(), atol=1e-4)
    assert (z.std((0, 2, 3), correction=0) - 1).abs().max() < ratio.max() + 1e-4
    assert z.mean((0, 2, 3)).abs().max() < 1e-4
    moments = bayesnorm.convert(net, norm="analytic", scale="point", preserve=False)
    assert (moments[0](x).std((0, 2, 3)) - 1).abs().max() > 0.1  # the twin: independence is off by more
    assert relative(bayesnorm.convert(net, **options)(x), net(x)) < 1e-4
    assert {"0.norm.patch_mean", "0.norm.patch_cov"} <= set(got.state_dict())


def test_patch_statistics_of_a_layer_that_reads_two_inputs_are_those_of_both():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, x, y):
            return self.head((self.first(x) - self.first(y)).mean((2, 3)))

    x, y = correlated(), 3 * correlated().flip(0) + 5
    options = {"norm": bayesnorm.Analytic(first_layer="patch"), "scale": "point", "preserve": False}
    got = bayesnorm.convert(Siamese(), example=(x, y), **options)
    z = got.first(torch.cat([x, y]))
    assert z.mean((0, 2, 3)).abs().max() < 1e-4
    assert (z.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-3


@pytest.mark.parametrize("padding", [4, "same"])
def test_patch_statistics_of_a_kernel_larger_than_the_image_take_in_its_padding(padding):
    x = correlated()[..., :8, :8]
    net = nn.Sequential(nn.Conv2d(3, 8, 9, padding=padding), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    options = {"norm": bayesnorm.Analytic(first_layer="patch"), "scale": "point", "example": x}
    z = bayesnorm.convert(net, preserve=False, **options)[0](x)
    assert z.mean((0, 2, 3)).abs().max() < 1e-4
    assert (z.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-3
    assert relative(bayesnorm.convert(net, **options)(x), net(x)) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_patch_statistics_survive_a_cast_to_half_precision(dtype):
    x = correlated().cumsum(-1).cumsum(-2)  # smooth: the covariance is nearly singular, rounded it is not positive
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    got = bayesnorm.convert(net, norm=bayesnorm.Analytic(first_layer="patch"), scale="bayes", example=x).eval()
    expected, cov = got(x), got[0].norm.patch_cov.clone()
    rounded = got.to(dtype)
    assert relative(rounded(x.to(dtype)).float(), expected) < 32 * torch.finfo(dtype).eps
    assert torch.equal(rounded[0].norm.patch_cov, cov)
    assert torch.linalg.eigvalsh(cov.to(dtype).double())[0] < 0 < torch.linalg.eigvalsh(cov.double())[-1]


@pytest.mark.parametrize("options", [{"groups": 3}, {"padding": 1, "padding_mode": "circular"}])
def test_patch_statistics_that_no_layer_can_use_are_refused(options):
    net = nn.Sequential(nn.Conv2d(3, 6, 3, **options), nn.BatchNorm2d(6))
    with pytest.raises(ValueError, match=r"no layer that is normalized reads an input .*: leave first_layer out"):
        bayesnorm.convert(net, norm=bayesnorm.Analytic(first_layer="patch"), scale="point", example=X)


def test_patch_statistics_of_a_linear_layer():
    x = normal(200, 6) @ normal(6, 6, seed=1)
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    options = {"norm": bayesnorm.Analytic(first_layer="patch"), "scale": "point", "preserve": False}
    got = bayesnorm.convert(net, example=x, **options)
    assert (got[0](x).std(0, correction=0) - 1).abs().max() < 1e-3
    with pytest.raises(ValueError, match=r"patch.*example="):
        bayesnorm.convert(net, **options)


# Arguments.

NAN, INF = math.nan, math.inf
WRONG = {
    "norm": ["bach", None, 3, ["batch"], bayesnorm.Batch],
    "scale": ["bays", None, 3, ["point"], bayesnorm.Bayes],
    "input_stats": [5, "ab", (0.0,), (0.0, 1.0, 2.0), (0.0, -1.0), (NAN, 1.0), (0.0, INF), ([0.0, 0.0], 1.0), ("a", 1)],
    "input_size": [32, "abc", (3, -4, 4), (4, 8, 8), (), (3, 8.5, 8)],
    "example": ["abc", torch.zeros(0, 3, 8, 8), torch.zeros(2, 4, 8, 8)],
    "include": [5, "nothing", ["0", "nothing"], nn.Conv3d],
    "exclude": [5, "nothing", ["0", "nothing"], nn.Conv3d, lambda name, module: False],
}


@pytest.mark.parametrize(
    ("argument", "value"), [(argument, value) for argument, values in WRONG.items() for value in values]
)
def test_a_wrong_argument_is_named(argument, value):
    options = {"norm": "analytic", "scale": "bayes"} | {argument: value}
    with pytest.raises(ValueError, match=argument):
        bayesnorm.convert(plain(), **options)


@pytest.mark.parametrize("model", [3, None, nn.Linear, "resnet50"])
def test_a_model_that_is_no_module_is_named(model):
    with pytest.raises(ValueError, match=rf"Module.*{type(model).__name__}"):
        bayesnorm.convert(model, norm="weight", scale="point")


@pytest.mark.parametrize(
    ("spec", "argument", "value"),
    [
        (bayesnorm.Analytic, "first_layer", "patches"),
        *((bayesnorm.Batch, "momentum", value) for value in (-0.1, 1.1, NAN, "a")),
        *((bayesnorm.Batch, "eps", value) for value in (-1e-5, NAN, INF, "a")),
        *((bayesnorm.Noise, name, value) for name in ("sigma_u", "sigma_v") for value in (-0.1, NAN, INF, "a")),
        *((bayesnorm.Bayes, "prior", value) for value in (0.0, -1.0, NAN, INF, "uniform")),
        *((bayesnorm.Bayes, "sigma_init", value) for value in (0.0, -1.0, NAN, INF, "a")),
        *((bayesnorm.Bayes, "floor", value) for value in (0.0, -1.0, NAN, INF, "a")),
    ],
)
def test_a_wrong_option_of_a_spec_is_named_with_its_value(spec, argument, value):
    with pytest.raises(ValueError, match=argument) as raised:
        spec(**{argument: value})
    assert str(value) in str(raised.value)


def test_lazy_modules_without_parameters_are_refused():
    with pytest.raises(ValueError, match="lazy"):
        bayesnorm.convert(nn.Sequential(nn.LazyConv2d(4, 3)), norm="weight", scale="point")


def test_a_network_without_values_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device.*to_empty.*load_state_dict"):
        bayesnorm.convert(plain().to("meta"), norm="weight", scale="point")


def test_a_network_with_nothing_to_normalize_is_refused():
    with pytest.raises(ValueError, match="nothing to normalize"):
        bayesnorm.convert(nn.Sequential(nn.ReLU()), norm="weight", scale="point")


def test_a_network_that_is_a_single_layer_converts():
    for net, x in ((nn.Linear(4, 3), normal(5, 4)), (nn.Conv1d(4, 3, 2), normal(5, 4, 6))):
        got = convert(net, "analytic", "bayes").eval()
        assert isinstance(got, NormLayer)
        assert relative(got(x), net(x)) < 1e-5
        assert relative(bayesnorm.fold(got)(x), net(x)) < 1e-5
        assert list(bayesnorm.fold(got).state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("norm", NORMS)
def test_a_network_that_is_a_single_batch_norm_converts(norm):
    net, x = randomize_(nn.Sequential(nn.BatchNorm1d(8)))[0].eval(), normal(5, 8)
    got = convert(net, norm, "bayes", input_size=(8,)).eval()
    assert isinstance(got, ChannelNorm)
    assert relative(got(x), net(x)) < 1e-5
    folded = bayesnorm.fold(got)
    assert relative(folded(x), net(x)) < 1e-5
    assert sorted(folded.state_dict()) == sorted(net.state_dict())
