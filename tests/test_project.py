"""Projection: no output changes, unit vectors in every layout, the box, momentum, shared weights."""

import copy

import pytest
import torch
from members import FULL, MEMBERS, NORMS, build, distance, inputs, layers, loss_of, train_and_eval
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm

import bayesnorm
from bayesnorm.layers import NormLinear
from bayesnorm.scales import BayesScale

D = torch.float64


@torch.no_grad()
def scramble_(net: nn.Module) -> nn.Module:
    """Weights of any length."""
    generator = torch.Generator().manual_seed(0)
    for layer in layers(net):
        if layer.weight_vectors() is not None:
            layer.weight.mul_(10 ** (4 * torch.rand(layer.weight.shape, generator=generator) - 2))
    return net


def lengths(layer: nn.Module) -> torch.Tensor:
    """Lengths of the weight vectors, slowly: channel o of a transposed layout is column o % (O/g), group o // (O/g)."""
    weight = layer.weight.detach()
    if "Transpose" not in type(layer).__name__:
        return torch.stack([row.norm() for row in weight])
    inputs_per_group, outputs_per_group = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    found = []
    for o in range(layer.out_channels):
        group, column = divmod(o, outputs_per_group)
        found.append(weight[group * inputs_per_group : (group + 1) * inputs_per_group, column].norm())
    return torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_projection_changes_no_output_and_no_buffer_and_makes_unit_vectors(norm, scale, kind, dtype):
    net, x = scramble_(build(norm, scale, kind, dtype)), inputs(kind, dtype=dtype)
    before = train_and_eval(net, x)
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    others = {name: p.clone() for name, p in net.named_parameters() if p.dim() < 2}
    bayesnorm.project_(net)
    after = train_and_eval(net, x)
    assert distance(after[0], before[0]) < 1e-6
    assert distance(after[1], before[1]) < 1e-6
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in net.named_buffers())
    assert all(torch.equal(p, others[name]) for name, p in net.named_parameters() if p.dim() < 2)
    for layer in layers(net):
        if layer.weight_vectors() is not None:
            assert torch.allclose(lengths(layer), torch.ones((), dtype=dtype), atol=1e-6)


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_zero_vectors_are_left_alone(norm, scale):
    net, x = build(norm, scale, preserve=False), inputs()
    weight = layers(net)[0].weight
    with torch.no_grad():
        weight[2].zero_()
    before = train_and_eval(net, x)
    bayesnorm.project_(net)
    assert torch.equal(weight[2], torch.zeros_like(weight[2]))
    assert weight.isfinite().all()
    assert torch.allclose(weight.flatten(1).norm(dim=1), torch.tensor([1.0, 1.0, 0.0, 1.0]))
    assert max(distance(a, b) for a, b in zip(train_and_eval(net, x), before, strict=True)) < 1e-5


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("stochastic_bias", [True, False])
def test_posterior_is_kept_in_its_box(norm, weights, stochastic_bias):
    net = build(norm, bayesnorm.Bayes(floor=1e-3, stochastic_bias=stochastic_bias))
    scale = layers(net)[0].scale
    with torch.no_grad():
        scale.s.copy_(torch.tensor([-1.0, 0.0, 2.0, 5e-4]))
        for parameter in scale.variance_parameters():
            parameter.copy_(torch.tensor([-11.0, 0.5, 2e3, -10.0]))
    before = [layer.weight.clone() for layer in layers(net)]
    bayesnorm.project_(net, weights=weights)
    assert torch.equal(scale.s, torch.tensor([1e-3, 1e-3, 2.0, 1e-3]))
    for parameter in scale.variance_parameters():
        assert torch.equal(parameter, torch.tensor([-10.0, 0.5, 1e3, -10.0]))
    same = [torch.equal(layer.weight, old) for layer, old in zip(layers(net), before, strict=True)]
    assert same == [not weights] * len(same)


def test_default_floor_is_that_of_the_method():
    assert bayesnorm.Bayes().floor == 1e-8


@pytest.mark.parametrize("scale", ["point", "noise"])
def test_other_scales_have_no_box(scale):
    net = build("weight", scale)
    with torch.no_grad():
        layers(net)[0].scale.s.fill_(-1.0)
    bayesnorm.project_(net)
    assert (layers(net)[0].scale.s == -1).all()
    assert not isinstance(layers(net)[0].scale, BayesScale)


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "nesterov": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups),
    "adamw": lambda groups: torch.optim.AdamW(groups),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["conv2d", "transposed2d_grouped", "depthwise", "linear", "channel"])
def test_momentum_is_orthogonal_to_the_weights_afterwards_if_asked_for(name, kind):
    net = scramble_(build("analytic", "bayes", kind, D))
    opt = OPTIMIZERS[name](bayesnorm.param_groups(net, lr=0.01, variance_lr=0.01))
    for step in range(3):
        loss = loss_of(net(inputs(kind, dtype=D, seed=step)))
        opt.zero_grad()
        loss.backward()
        opt.step()
    other = copy.deepcopy(opt.state_dict())
    bayesnorm.project_(net)
    for old, new in zip(other["state"].values(), opt.state_dict()["state"].values(), strict=True):
        assert all(torch.equal(torch.as_tensor(old[key]), torch.as_tensor(new[key])) for key in old)
    slot = "exp_avg" if name.startswith("adam") else "momentum_buffer"
    along = [
        cosines(layer, opt.state[layer.weight][slot]) for layer in layers(net) if layer.weight_vectors() is not None
    ]
    before = {
        layer: opt.state[layer.weight][slot].clone() for layer in layers(net) if layer.weight_vectors() is not None
    }
    assert max(value.abs().max() for value in along) > 1e-5
    bayesnorm.project_(net, momentum=opt)
    for layer, old in before.items():
        new = opt.state[layer.weight][slot]
        assert cosines(layer, new).abs().max() < 1e-10  # rounding times |momentum| before / after
        rows, weight = layer.geometry.filters(old), layer.geometry.filters(layer.weight.detach())
        expected = rows - (rows * weight).sum(1, keepdim=True) * weight
        assert torch.allclose(layer.geometry.filters(new), expected, atol=1e-12)
        assert "exp_avg_sq" not in opt.state[layer.weight] or (opt.state[layer.weight]["exp_avg_sq"] >= 0).all()


def cosines(layer: nn.Module, buffer: torch.Tensor) -> torch.Tensor:
    rows, weight = layer.geometry.filters(buffer), layer.geometry.filters(layer.weight.detach())
    return (rows * weight).sum(1) / (rows.norm(dim=1) * weight.norm(dim=1))


def test_optimizer_without_momentum_is_accepted():
    net = scramble_(build("weight", "point"))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loss_of(net(inputs())).backward()
    opt.step()
    bayesnorm.project_(net, momentum=opt)
    assert torch.allclose(lengths(layers(net)[0]), torch.ones(4))


def tied(normalized_both: bool) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
    if normalized_both:
        net.append(nn.BatchNorm1d(4))
    net = bayesnorm.convert(net, norm="weight", scale="point")
    net[3].weight = net[0].weight
    return net


def test_weight_shared_with_a_plain_layer_is_refused_by_both_names():
    net = tied(normalized_both=False)
    before = net[0].weight.clone()
    with pytest.raises(ValueError, match=r"'0'.*'3\.weight'"):
        bayesnorm.project_(net)
    assert torch.equal(net[0].weight, before)
    bayesnorm.project_(net, weights=False)
    assert torch.equal(net[0].weight, before)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("both", [True, False])
def test_layers_with_a_tied_weight_are_normalized_each(norm, both):
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), *[nn.BatchNorm1d(4)] * both)
    plain[3].weight = plain[0].weight
    net = bayesnorm.convert(plain, norm=norm, scale="point")
    assert isinstance(net[0], NormLinear)
    assert isinstance(net[3], NormLinear) == both
    assert net[3].weight is net[0].weight
    if not both:
        with pytest.raises(ValueError, match=r"'0'.*'3\.weight'"):
            bayesnorm.project_(net)


def test_weight_shared_by_normalized_layers_is_projected_once():
    net, x = tied(normalized_both=True), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    before = train_and_eval(net, x)
    bayesnorm.project_(net)
    assert torch.allclose(net[0].weight.norm(dim=1), torch.ones(4))
    assert net[3].weight is net[0].weight
    assert max(distance(a, b) for a, b in zip(train_and_eval(net, x), before, strict=True)) < 1e-5


def test_weight_shared_with_a_plain_layer_inside_a_larger_network_is_refused():
    inner = tied(normalized_both=True)
    outer = nn.ModuleDict({"body": inner, "head": nn.Linear(4, 4, bias=False)})
    outer["head"].weight = inner[0].weight
    with pytest.raises(ValueError, match=r"'body\.\d'.*'head\.weight'"):
        bayesnorm.project_(outer)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second
        second.weight = first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: nn.Conv2d(3, 8, 3), lambda: nn.ConvTranspose2d(8, 3, 3)),
        (lambda: nn.ConvTranspose2d(4, 4, 3, groups=2), lambda: nn.ConvTranspose2d(4, 2, 3)),
    ],
)
def test_weight_shared_by_layers_of_other_vectors_is_refused_by_both_names(norm, first, second):
    net = bayesnorm.convert(Tied(first(), second()), norm=norm, scale="point", preserve=False)
    before = net.first.weight.clone()
    with pytest.raises(ValueError, match=r"'first'.*'second'.*untie the two, or call project_\(net, weights=False\)"):
        bayesnorm.project_(net)
    bayesnorm.project_(net, weights=False)
    assert torch.equal(net.first.weight, before)


@pytest.mark.parametrize("norm", NORMS)
def test_weight_shared_by_convolutions_of_other_groups_is_projected(norm):
    tied = Tied(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2, stride=2))
    net = scramble_(bayesnorm.convert(tied, norm=norm, scale="point", preserve=False)).eval()
    x = torch.randn(2, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    before = net(x)
    bayesnorm.project_(net)
    assert distance(net(x), before) < 1e-5
    assert torch.allclose(lengths(net.first), torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiny_vectors_in_half_precision_become_unit_vectors(dtype):
    torch.manual_seed(0)
    net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 8)), norm="weight", scale="point", preserve=False).to(dtype)
    with torch.no_grad():
        net[0].weight.copy_(torch.randn(8, 4) * 5e-6)
    x = torch.randn(3, 4, dtype=dtype)
    before = net(x)
    bayesnorm.project_(net)
    assert torch.allclose(net[0].weight.float().norm(dim=1), torch.ones(8), atol=8 * torch.finfo(dtype).eps)
    assert distance(net(x).float(), before.float()) < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["conv2d", "transposed2d_grouped", "linear"])
def test_pruned_vectors_become_unit_vectors_and_no_output_changes(norm, kind):
    net, x = scramble_(build(norm, "noise", kind, D)), inputs(kind, dtype=D)
    layer = layers(net)[0]
    mask = torch.ones_like(layer.weight)
    mask.view(-1)[::3] = 0
    prune.custom_from_mask(layer, "weight", mask)
    opt = torch.optim.SGD(bayesnorm.param_groups(net, lr=0.01), momentum=0.9)
    loss_of(net(x)).backward()
    opt.step()
    net.eval()
    before = net(x)
    bayesnorm.project_(net, momentum=opt)
    after = net(x)
    assert distance(after, before) < 1e-10
    assert torch.allclose(lengths(layer), torch.ones((), dtype=D))
    assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask)
    momentum = opt.state[layer.weight_orig]["momentum_buffer"]
    assert cosines(layer, momentum).abs().max() < 1e-10
    assert not momentum[mask == 0].any(), "of what is pruned there is none"


def test_weight_that_is_computed_is_refused_by_name():
    net = build("weight", "point")
    spectral_norm(net[3])
    before = net[0].weight.clone()
    with pytest.raises(ValueError, match=r"'3' is computed.*remove_parametrizations.*weights=False"):
        bayesnorm.project_(net)
    assert torch.equal(net[0].weight, before)
    bayesnorm.project_(net, weights=False)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_of_a_plain_network_does_nothing_and_is_idempotent(norm):
    plain = nn.Linear(3, 2)
    before = plain.weight.clone()
    bayesnorm.project_(plain)
    assert torch.equal(plain.weight, before)
    net = scramble_(build(norm, "bayes", dtype=D))
    bayesnorm.project_(net)
    once = {name: p.clone() for name, p in net.named_parameters()}
    bayesnorm.project_(net)
    assert all(torch.allclose(p, once[name], rtol=1e-14, atol=0) for name, p in net.named_parameters())


def test_projection_keeps_parameter_objects_and_leaves_no_graph():
    net = scramble_(build("analytic", "bayes"))
    objects = [id(p) for p in net.parameters()]
    bayesnorm.project_(net)
    assert [id(p) for p in net.parameters()] == objects
    assert all(p.is_leaf and p.grad is None for p in net.parameters())
