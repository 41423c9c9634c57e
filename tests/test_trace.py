"""Recording a network: sizes to try, operations without a rule, rules of the user, what tracing must not touch."""

import copy
import random
import warnings

import networks
import numpy as np
import pytest
import torch
from architectures import randomize_
from networks import convert, input_moments, layers, normal, plain, relative, with_operation
from torch import nn

import bayesnorm
from bayesnorm.moments import Moments, core

X = normal(16, 3, 8, 8)


@pytest.fixture(autouse=True)
def _own_rules(monkeypatch):
    """Rules registered in a test end with it."""
    monkeypatch.setattr(core, "_rules", dict(core._rules))


class Function(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Method(nn.Module):
    def forward(self, x):
        return x.sinc()


class Composite(nn.Module):
    """A module whose parts have no rule."""

    def __init__(self):
        super().__init__()
        self.frequency = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return torch.special.bessel_j0(x * self.frequency).sinc()


class Seen(torch.autograd.Function):
    """Made of operations that have rules."""

    @staticmethod
    def forward(ctx, x):
        return torch.relu(x) * 2

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Unseen(torch.autograd.Function):
    """Made of nothing that torch sees."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.tanh(x.detach().cpu().numpy()))

    @staticmethod
    def backward(ctx, grad):
        return grad


class Custom(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


CASES_WITHOUT_RULE = [(Function(), "bessel_j0"), (Method(), "sinc"), (Custom(Unseen), "")]


# No rule.


@pytest.mark.parametrize(("operation", "name"), CASES_WITHOUT_RULE[:2])
def test_an_operation_without_a_rule_is_named_and_the_way_out_said(operation, name):
    with pytest.raises(bayesnorm.moments.NoRuleError, match=name) as raised:
        convert(with_operation(operation), "analytic", "point")
    message = str(raised.value)
    assert "'2'" in message
    assert "bayesnorm.moments.register" in message
    assert "rule(m, *args, **kwargs) -> Moments(mean, var)" in message
    assert "example=" in message


def test_an_operation_that_torch_does_not_see_is_an_error_that_says_so():
    with pytest.raises(bayesnorm.moments.NoRuleError, match="example=") as raised:
        convert(with_operation(Custom(Unseen)), "analytic", "point")
    assert "_unseen" not in str(raised.value)  # no name of ours: the user cannot find it in the network


@pytest.mark.parametrize("norm", ["batch", "weight"])
@pytest.mark.parametrize(("operation", "_"), CASES_WITHOUT_RULE)
def test_norms_without_propagation_need_no_rules(norm, operation, _):
    net = with_operation(operation)
    got = convert(net, norm, "point")
    assert len(layers(got)) == 2
    assert relative(got(X), net(X)) < 1e-4


def test_an_operation_behind_the_last_normalized_layer_needs_no_rule():
    net = nn.Sequential(*plain()[:5], Function())
    assert relative(convert(net, "analytic", "point")(X), net(X)) < 1e-4


# Measured on an example.


@pytest.mark.parametrize(("operation", "name"), CASES_WITHOUT_RULE)
def test_moments_are_measured_once_on_the_example_and_held(operation, name):
    net = with_operation(operation)
    with pytest.warns(UserWarning, match=f"{name}.*measured on example=") as caught:
        got = bayesnorm.convert(net, norm="analytic", scale="bayes", example=X)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # points to the call of convert
    with torch.no_grad():
        activation = net[:3](X)
    mean, var = activation.mean((0, 2, 3)), activation.var((0, 2, 3), correction=0)
    for _ in range(2):
        held = input_moments(got[3])
        assert torch.allclose(held[0], mean, atol=1e-5)
        assert torch.allclose(held[1], var, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(held[1], 1.1 * var, rtol=1e-4, atol=1e-6)  # the twin
        networks.perturb_(got[0])  # what is held does not follow the parameters
    assert {key for key in got.state_dict() if key.startswith("held_")} == {"held_mean_0", "held_var_0"}


def test_held_moments_preserve_the_output_reload_and_fold():
    net = nn.Sequential(*with_operation(Function()), Method(), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)).eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got, other = (
            bayesnorm.convert(net, norm="analytic", scale="point", example=x) for x in (X, normal(4, 3, 8, 8, seed=1))
        )
    assert len(caught) == 4
    assert relative(got(X), net(X)) < 1e-4
    assert not torch.equal(other.held_var_0, got.held_var_0)
    other.load_state_dict(got.state_dict())
    assert torch.equal(other(X), got(X))
    folded = bayesnorm.fold(got)
    assert relative(folded(X), net(X)) < 1e-4
    assert not any("held" in key for key in folded.state_dict())


def test_an_example_without_need_measures_nothing():
    got = bayesnorm.convert(plain(), norm="analytic", scale="point", example=X)
    assert not any(key.startswith("held_") for key in got.state_dict())


# Rules of the user.


@pytest.mark.parametrize(
    ("target", "operation"),
    [(torch.special.bessel_j0, Function()), ("sinc", Method()), (Composite, Composite())],
    ids=["function", "method", "module"],
)
def test_a_registered_rule_is_used(target, operation):
    calls = []

    @bayesnorm.moments.register(target)
    def rule(m):
        calls.append(m)
        return Moments(m.mean * 0 + 0.25, m.var * 0 + 4.0)

    net = with_operation(operation)
    got = convert(net, "analytic", "point")
    assert calls
    assert calls[0].size[:2] == (2, 8)
    assert torch.allclose(calls[0].mean.flatten(), net[1].bias)
    assert torch.allclose(calls[0].var.flatten(), net[1].weight ** 2)
    mean, var = input_moments(got[3])
    assert torch.equal(mean, torch.full((8,), 0.25))
    assert torch.equal(var, torch.full((8,), 4.0))
    assert relative(got(X), net(X)) < 1e-4


def test_a_rule_gets_the_arguments_of_the_call_and_follows_parameters():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.power = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return torch.special.xlog1py(x, other=self.power)

    @bayesnorm.moments.register(torch.special.xlog1py)
    def rule(m, other):
        return Moments(m.mean * other.log1p(), m.var * other.log1p() ** 2)

    net = with_operation(Scaled())
    got = convert(net, "analytic", "point")
    for power in (2.0, 5.0):
        with torch.no_grad():
            got[2].power.fill_(power)
        assert torch.allclose(input_moments(got[3])[0], net[1].bias * np.log1p(power), rtol=1e-5)
    input_moments(got[3])[1].sum().backward()
    assert got[2].power.grad.abs() > 0


def test_the_rule_of_a_module_may_ask_for_the_module():
    @bayesnorm.moments.register(Composite)
    def rule(m, module):
        return Moments(m.mean * module.frequency, m.var * module.frequency**2)

    net = with_operation(Composite())
    got = convert(net, "analytic", "point")
    for frequency in (2.0, 5.0):
        with torch.no_grad():
            got[2].frequency.fill_(frequency)
        assert torch.allclose(input_moments(got[3])[0], net[1].bias * frequency, rtol=1e-6)


def test_the_latest_registration_wins_and_a_subclass_inherits():
    class Child(Composite):
        pass

    bayesnorm.moments.register(Composite)(lambda m: Moments(m.mean * 0 + 1.0, m.var))
    bayesnorm.moments.register(Composite)(lambda m: Moments(m.mean * 0 + 2.0, m.var))
    got = convert(with_operation(Child()), "analytic", "point")
    assert torch.equal(input_moments(got[3])[0], torch.full((8,), 2.0))


def test_registering_an_unknown_method_is_an_error():
    with pytest.raises(ValueError, match="'no_such_method'"):
        bayesnorm.moments.register("no_such_method")(lambda m: m)


def test_an_autograd_function_of_known_operations_is_seen_through():
    net = with_operation(Custom(Seen))
    got = convert(net, "analytic", "point")
    rectified = convert(with_operation(nn.ReLU()), "analytic", "point")
    assert torch.allclose(input_moments(got[3])[0], 2 * input_moments(rectified[3])[0], rtol=1e-6)
    assert torch.allclose(input_moments(got[3])[1], 4 * input_moments(rectified[3])[1], rtol=1e-6)
    assert relative(got(X), net(X)) < 1e-4


# Sizes to try (that the guesses suit every architecture is shown in test_convert).


class Flat(nn.Module):
    """Accepts one size only, which no guess meets."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 9 * 5, 2)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).flatten(1))


@pytest.mark.parametrize("norm", networks.NORMS)
def test_a_size_that_cannot_be_guessed_is_asked_for(norm):
    net, x = Flat().eval(), normal(2, 3, 11, 7)
    with pytest.raises(ValueError, match=r"did not run.*input_size=\(channels, height, width\) or example="):
        convert(net, norm, "point")
    assert relative(bayesnorm.convert(net, norm=norm, scale="point", input_size=(3, 11, 7))(x), net(x)) < 1e-4
    assert relative(bayesnorm.convert(net, norm=norm, scale="point", example=x)(x), net(x)) < 1e-4


def test_an_error_of_the_network_itself_is_shown():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            raise KeyError("my own mistake")

    with pytest.raises(ValueError, match="my own mistake"):
        convert(Broken(), "weight", "point")


class Decides(nn.Module):
    """Looks at values, so that shapes alone do not run it."""

    def __init__(self):
        super().__init__()
        self.net = plain()[:5]

    def forward(self, x):
        return self.net(x) if x.sum().item() > -1e9 else x


def test_a_network_that_looks_at_values_is_run_on_values():
    net = Decides().eval()
    assert relative(convert(net, "analytic", "bayes")(X), net(X)) < 1e-4


def test_a_tensor_that_is_neither_parameter_nor_buffer_is_a_constant():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.shift = plain()[:5], torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)

        def forward(self, x):
            return self.net(x - self.shift)

    net = Plain().eval()
    got = convert(net, "analytic", "point", input_stats=([1.0, 2.0, 4.0], 1.0))
    assert torch.allclose(input_moments(got.net[0])[0], torch.tensor([0.0, 0.0, 1.0]))
    assert relative(got(X), net(X)) < 1e-4


# What tracing must not touch.


class Counts(nn.Module):
    """Changes a buffer and draws in each call."""

    def __init__(self):
        super().__init__()
        self.net = plain()[:5]
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        return self.net(x + 0 * torch.rand_like(x))


@pytest.mark.parametrize("norm", networks.NORMS)
@pytest.mark.parametrize("example", [None, X])
def test_tracing_in_place_changes_no_buffer_and_no_statistic(norm, example):
    net = Counts().train()
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(0)
    bayesnorm.convert(net, norm=norm, scale="point", inplace=True, example=example)
    assert net.calls == before["calls"] == 0
    assert torch.equal(net.net[0].weight, before["net.0.weight"])
    if norm == "batch":
        assert torch.allclose(net.net[0].norm.running_var, before["net.1.running_var"], rtol=1e-5, atol=1e-7)
        assert net.net[0].norm.num_batches_tracked == before["net.1.num_batches_tracked"]


def test_tracing_leaves_no_trace_on_the_modules():
    net = plain()
    got = convert(net, "analytic", "bayes")
    for model in (net, got):
        assert not any("forward" in vars(m) for m in model.modules())
        assert not any(t.is_meta for t in model.state_dict().values())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in net.modules())
    # one pair of hooks on the root opens the scope; its leaves have none
    counted = {n: (len(m._forward_pre_hooks), len(m._forward_hooks)) for n, m in got.named_modules()}
    assert counted.pop("") == (1, 1)
    assert set(counted.values()) == {(0, 0)}


class Remembers(nn.Module):
    """Writes attributes in forward: a counter, a cached constant, the response for whoever wants it."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.count, self.mask, self.response = 0, None, None

    def forward(self, x):
        self.count += 1
        if self.mask is None:
            self.mask = torch.full((1, 3, 1, 1), 0.5, dtype=x.dtype, device=x.device)
        self.response = self.conv(x * self.mask)
        return self.norm(self.response)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("norm", networks.NORMS)
def test_attributes_that_forward_writes_are_as_before_tracing(norm, inplace):
    net = randomize_(Remembers()).eval()
    original = copy.deepcopy(net)
    got = bayesnorm.convert(net, norm=norm, scale="point", inplace=inplace)
    assert (got.count, got.mask, got.response) == (0, None, None)
    assert relative(got(X), original(X)) < 1e-4
    assert torch.equal(got.mask, original.mask)
    assert relative(got.response, original.response) < 1e-4


def test_tracing_takes_nothing_from_pythons_generator():
    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.branch = plain()[:3], plain()[3:5]

        def forward(self, x):
            x = self.stem(x)
            return x if self.training and random.random() < 0.5 else x + nn.functional.pad(self.branch(x), [1] * 4)

    net, state = Skips().eval(), random.getstate()
    got = convert(net, "analytic", "point")
    assert random.getstate() == state
    assert relative(got(X), net(X)) < 1e-4
    assert set(layers(got)) == {"stem.0", "branch.3"}
