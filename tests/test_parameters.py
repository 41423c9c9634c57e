"""Parameter groups: who is in which, their steps, no weight decay, what a known optimizer lacks."""

import pytest
import torch
from architectures import CASES
from members import FULL, MEMBERS, build, inputs, loss_of
from torch import nn

import bayesnorm

STEP = 0.01


def by_name(net: nn.Module, groups: list[dict]) -> dict[str, set[str]]:
    names = {id(p): name for name, p in net.named_parameters()}
    return {group["name"]: {names[id(p)] for p in group["params"]} for group in groups}


@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_every_parameter_is_in_exactly_one_group(norm, scale, kind):
    net = build(norm, scale, kind)
    groups = bayesnorm.param_groups(net, lr=STEP)
    listed = [id(p) for group in groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in net.parameters()}
    assert [group["name"] for group in groups] == ["weights", "scales", "variances"][: 3 if scale == "bayes" else 2]


@pytest.mark.parametrize("norm", ["batch", "weight", "analytic"])
def test_groups_hold_weights_then_scales_then_variances_with_their_steps(norm):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    net = bayesnorm.convert(net, norm=norm, scale=bayesnorm.Bayes(stochastic_bias=True))
    groups = bayesnorm.param_groups(net, lr=STEP)
    assert by_name(net, groups) == {
        "weights": {"0.weight", "3.weight"},
        "scales": {"0.scale.s", "0.scale.b", "3.bias"},
        "variances": {"0.scale.u", "0.scale.v"},
    }
    assert [group["lr"] for group in groups] == [STEP, STEP, 100 * STEP]
    assert [group["lr"] for group in bayesnorm.param_groups(net, STEP, variance_lr=0.5)] == [STEP, STEP, 0.5]


def test_one_variance_per_layer_is_a_variance():
    net = build("weight", bayesnorm.Bayes(per_layer_variance=True))
    assert by_name(net, bayesnorm.param_groups(net, STEP))["variances"] == {"0.scale.u", "3.scale.u"}


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_no_weight_decay_even_if_the_optimizer_has_one_by_default(decay):
    net = build("weight", "bayes")
    opt = torch.optim.SGD(bayesnorm.param_groups(net, lr=STEP), lr=STEP, weight_decay=decay)
    assert [group["weight_decay"] for group in opt.param_groups] == [0.0, 0.0, 0.0]
    before = {name: p.clone() for name, p in net.named_parameters()}
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    assert [group["weight_decay"] for group in torch.optim.AdamW(bayesnorm.param_groups(net, STEP)).param_groups] == [
        0.0
    ] * 3


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_known_optimizer_gets_what_it_lacks_and_nothing_twice(norm, scale):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=STEP, momentum=0.9)
    same = bayesnorm.convert(net, norm=norm, scale=scale, inplace=True)
    assert same is net
    lacking = bayesnorm.param_groups(net, lr=STEP, known=opt)
    assert [group["name"] for group in lacking] == (["variances"] if scale == "bayes" else [])
    for group in lacking:
        opt.add_param_group(group)
    live = {id(p) for p in net.parameters()}
    held = [id(p) for group in opt.param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert live <= set(held)
    assert bayesnorm.param_groups(net, lr=STEP, known=opt) == []
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    loss_of(net(inputs())).backward()
    opt.step()
    assert all(not torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_frozen_parameters_are_left_out_and_shared_ones_counted_once():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    net = bayesnorm.convert(net, norm="weight", scale="point")
    net[2].weight = net[0].weight
    net[0].scale.b.requires_grad_(False)
    assert by_name(net, bayesnorm.param_groups(net, STEP)) == {
        "weights": {"0.weight"},
        "scales": {"0.scale.s", "2.scale.s", "2.scale.b"},
    }


def test_published_network_is_covered():
    net = bayesnorm.convert(CASES["mobilenet_v3_small"].build(), norm="analytic", scale="bayes")
    groups = bayesnorm.param_groups(net, lr=STEP)
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in net.parameters())
    assert all(p.dim() >= 2 for p in groups[0]["params"])


def test_groups_work_in_an_optimizer_that_saves_and_loads():
    net = build("analytic", "bayes")
    opt = torch.optim.SGD(bayesnorm.param_groups(net, lr=STEP), momentum=0.9, nesterov=True)
    loss_of(net(inputs())).backward()
    opt.step()
    other = torch.optim.SGD(bayesnorm.param_groups(net, lr=1.0), momentum=0.9, nesterov=True)
    other.load_state_dict(opt.state_dict())
    assert [group["lr"] for group in other.param_groups] == [STEP, STEP, 100 * STEP]
    assert [group["name"] for group in other.param_groups] == ["weights", "scales", "variances"]


@pytest.mark.parametrize("wrong", [0.0, -0.1, float("nan")])
def test_wrong_step_is_refused(wrong):
    net = build("weight", "bayes")
    with pytest.raises(ValueError, match="lr="):
        bayesnorm.param_groups(net, lr=wrong)
    with pytest.raises(ValueError, match="variance_lr="):
        bayesnorm.param_groups(net, lr=STEP, variance_lr=wrong)


@pytest.mark.parametrize("steps", [{"lr": 0.0}, {"lr": float("inf")}, {"lr": 0.1, "variance_lr": float("nan")}])
def test_a_step_that_is_none_is_refused(steps):
    with pytest.raises(ValueError, match=r"lr=.*: must be positive"):
        bayesnorm.param_groups(torch.nn.Linear(2, 2), **steps)
