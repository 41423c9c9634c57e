"""Recording a network: sizes to try, operations without a rule, rules of the user, what tracing must not touch."""

import copy
import random
import warnings

import networks
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from architectures import randomize_
from networks import convert, input_moments, layers, normal, plain, relative, with_operation
from torch import nn

import bayesnorm
from bayesnorm.moments import Moments, NoRuleError, core, gaussian

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


class Between(nn.Module):
    """A function of the first layer's output before the second, on (N, 3, 8, 8)."""

    def __init__(self, function, head=None):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), head or nn.Conv2d(4, 4, 3, padding=1)
        self.gain = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        self.norm = nn.LayerNorm((4, 8, 8), bias=False)
        self.register_buffer("wide", torch.zeros(1, dtype=torch.float64))
        self.function = function

    def forward(self, x):
        return self.second(self.function(self, self.first(x)))


def between(function, head=None, **options):
    """The converted network, its first layer's moments (b, s^2) made different in each channel."""
    torch.manual_seed(0)
    net = Between(function, head)
    nn.init.normal_(net.norm.weight)
    options = {"input_size": (3, 8, 8), "preserve": False} | options
    got = bayesnorm.convert(net, norm="analytic", scale="point", **options).eval()
    with torch.no_grad():
        got.first.scale.b.normal_()
        got.first.scale.s.uniform_(0.5, 2)
    return got


def handed_on(net):
    scale = net.first.scale
    return scale.b, scale.s**2


# Rules that fail.


class Fails(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


@pytest.mark.filterwarnings("ignore:no moment rule:UserWarning")
@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError, RuntimeError, ZeroDivisionError])
@pytest.mark.parametrize("branches", [1, 2])  # two equal operations are one call of a rule that is elementwise
def test_whatever_a_rule_raises_names_the_place_and_example_replaces_it(error, branches):
    @bayesnorm.moments.register(torch.special.bessel_j0)
    @core.elementwise
    def rule(m):
        raise error("of the rule")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.ModuleList([nn.Conv2d(3, 4, 3) for _ in range(branches)])
            self.fails, self.second = Fails(), nn.Conv2d(4 * branches, 4, 3)

        def forward(self, x):
            return self.second(torch.cat([self.fails(first(x)) for first in self.first], 1))

    net, x = Net().eval(), normal(32, 3, 8, 8)
    with pytest.raises(
        NoRuleError, match=rf"'special_bessel_j0' in 'fails': {error.__name__}: .*of the rule.*example="
    ) as raised:
        convert(net, "analytic", "point", input_size=(3, 8, 8))
    assert type(raised.value.__cause__) is error
    got = convert(net, "analytic", "point", example=x)
    assert relative(got(x), net(x)) < 1e-5
    seen = torch.cat([net.fails(first(x)) for first in net.first], 1)
    torch.testing.assert_close(input_moments(got.second), core.mean_var(seen, 1), rtol=1e-5, atol=1e-6)


def test_a_rule_that_returns_too_few_results_is_named():
    bayesnorm.moments.register(torch.unbind, "unbind")(lambda m, dim=0: [m])
    with pytest.raises(NoRuleError, match="'unbind' in the network's own forward"):
        between(lambda net, h: sum(h.unsqueeze(2).expand(-1, -1, 3, -1, -1).unbind(2)))


def test_a_lack_of_memory_is_not_a_lack_of_rules():
    @bayesnorm.moments.register(torch.special.bessel_j0)
    def rule(m):
        raise torch.cuda.OutOfMemoryError("no memory")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="no memory"):
        between(lambda net, h: torch.special.bessel_j0(h))


def _gained(net, h):
    return h * net.gain.view(4, 1, 1)


NUMPY = {
    "mean": (lambda net, h: h - h.mean(axis=(2, 3), keepdims=True), lambda net, h: h - h.mean((2, 3), keepdim=True)),
    "sum": (lambda net, h: h.sum(axis=-1, keepdims=True), lambda net, h: h.sum(dim=-1, keepdim=True)),
    "softmax": (lambda net, h: torch.softmax(h, axis=1), lambda net, h: torch.softmax(h, dim=1)),
    "max": (lambda net, h: torch.max(h, axis=3, keepdims=True)[0], lambda net, h: torch.max(h, 3, keepdim=True)[0]),
    "min": (lambda net, h: h.min(axis=2, keepdims=True).values, lambda net, h: h.min(2, True).values),
    "amax": (lambda net, h: h.amax(axis=3, keepdims=True), lambda net, h: h.amax(3, True)),
    "stack": (lambda net, h: torch.stack([h, 2 * h], axis=4).sum(4), lambda net, h: torch.stack([h, 2 * h], 4).sum(4)),
    "cat": (lambda net, h: torch.cat([h[:, :2], h], axis=1)[:, :4], lambda net, h: torch.cat([h[:, :2], h], 1)[:, :4]),
    "swapaxes": (lambda net, h: h.swapaxes(axis0=1, axis1=3).swapaxes(1, 3), lambda net, h: h),
    "add": (lambda net, h: torch.add(x=h, x2=h), lambda net, h: torch.add(h, h)),
    "constant": (lambda net, h: h * net.gain.view(4, 1, 1).sum(axis=1, keepdims=True), _gained),
}


@pytest.mark.parametrize("name", NUMPY)
def test_arguments_by_numpys_names(name):
    got, expected = (input_moments(between(function).second) for function in NUMPY[name])
    torch.testing.assert_close(got, expected)


def test_a_rule_that_uses_numpys_names_gets_them():
    @bayesnorm.moments.register("sum")
    def rule(m, axis, keepdims):
        return Moments(m.mean + axis, m.var)

    net = between(lambda net, h: h.sum(axis=3, keepdims=True))
    torch.testing.assert_close(input_moments(net.second)[0], handed_on(net)[0] + 3)


CONSTANTS = {
    "to": lambda net, h: h * net.gain.to(h).view(1, 4, 1, 1),
    "to_keyword": lambda net, h: h * net.gain.to(tensor=h).view(1, 4, 1, 1),
    "type_as": lambda net, h: h * net.gain.type_as(h)[None, :, None, None],
    "expand_as": lambda net, h: h * net.gain.view(4, 1, 1).expand_as(h),
    "expand_as_flat": lambda net, h: (h.flatten(1) * net.gain.view(4, 1, 1).expand_as(h).flatten(1)).view(h.shape),
    "view_as": lambda net, h: h * net.gain.repeat(2).view_as(h[:2, :, 0, 0])[0].view(4, 1, 1),
    "mask": lambda net, h: h * _filled(torch.ones(4, 1, 1), net.gain),
}


def _filled(mask, values):
    for channel, value in enumerate(values):
        mask[channel] = value
    return mask


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_with_size_or_dtype_of_an_activation_is_a_constant(name):
    net = between(CONSTANTS[name])
    with torch.no_grad():
        net.gain.mul_(1.5)  # looked up each time
    mean, var = handed_on(net)
    torch.testing.assert_close(input_moments(net.second), (mean * net.gain, var * net.gain**2))


def test_moments_that_vary_over_space_in_their_variance_alone_are_averaged():
    net = between(lambda net, h: net.norm(h))
    mean, var = input_moments(net.second)
    torch.testing.assert_close(var, net.norm.weight.square().mean((1, 2)))
    assert not mean.any()


DOUBLE = {
    "double": lambda net, h: h.double(),
    "to": lambda net, h: h.to(torch.float64),
    "dtype": lambda net, h: h.to(dtype=torch.float64),
    "device": lambda net, h: h.to(h.device, torch.float64),
    "parameter": lambda net, h: h.to(net.wide),
    "type": lambda net, h: h.type(torch.float64),
    "type_as": lambda net, h: h.type_as(net.wide),
    "activation": lambda net, h: F.relu(h).to(h.double()),
}


@pytest.mark.parametrize("name", DOUBLE)
def test_a_head_in_double_precision(name):
    head = nn.Conv2d(4, 4, 3, padding=1).double()
    net = between(DOUBLE[name], head)
    expected = [t.double() for t in handed_on(net)]
    expected = gaussian.relu(*expected) if name == "activation" else expected
    mean, var = input_moments(net.second)
    assert (mean.dtype, var.dtype) == (torch.float64, torch.float64)
    torch.testing.assert_close((mean, var), tuple(expected))
    plain = Between(DOUBLE[name], nn.Conv2d(4, 4, 3, padding=1).double()).eval()
    assert relative(bayesnorm.convert(plain, norm="analytic", scale="point")(X), plain(X)) < 1e-5


# Writes into memory that another tensor has too.


def _scaled_slice(net, h):
    h[:, :2].mul_(100)
    return h


def _scaled_chunk(net, h):
    h.chunk(2, 1)[0].mul_(100)
    return h


def _flat_relu(net, h):
    F.relu_(h.flatten(2))
    return h


def _inplace_argument(net, h):
    F.relu(h.flatten(2), inplace=True)
    return h


def _out(net, h):
    part = h[:, 1:3]
    torch.add(part, 1, out=part)
    return h


def _assigned(net, h):
    part = h[:, :2]
    part[:, 0] = 2.0
    return h


def _seen_by_a_view(net, h):
    part = h[:, :2]
    h.mul_(100)
    return torch.cat([part, part], 1)


def _twice(net, h):
    h[:, :2].mul_(100)
    return h.relu_()


def _filled_by_parts(net, h):
    whole = torch.zeros(len(h), 4, 8, 8)
    whole[:, :2].copy_(h[:, 2:])
    return whole


def _constant_slice(net, h):
    gain = net.gain.clone()
    gain[:2].mul_(100)
    return h * gain.view(4, 1, 1)


WRITES = {
    "mul_": [_scaled_slice, _scaled_chunk, _seen_by_a_view, _twice],
    "relu_": [_flat_relu],
    "relu": [_inplace_argument],
    "add": [_out],
    "__setitem__": [_assigned],
    "copy_": [_filled_by_parts],
}
EACH = [pytest.param(name, write, id=write.__name__) for name, writes in WRITES.items() for write in writes]


@pytest.mark.parametrize(("name", "write"), EACH)
def test_a_write_that_another_tensor_sees_is_refused(name, write):
    with pytest.raises(NoRuleError, match=rf"'{name}' in the network's own forward writes .*out of place.*example="):
        between(write)


@pytest.mark.filterwarnings("ignore:no moment rule:UserWarning")
@pytest.mark.parametrize("scale", ["point", "bayes", "noise"])
@pytest.mark.parametrize(("name", "write"), EACH)
@torch.no_grad()
def test_a_write_that_another_tensor_sees_is_measured_on_an_example(name, write, scale):
    """What is held is what the activation has on the example; the rules of the operations behind apply to it."""
    torch.manual_seed(0)
    x = normal(256, 3, 8, 8)
    net = bayesnorm.convert(Between(write), norm="analytic", scale=scale, example=x, preserve=False).eval()
    seen = write(net, net.first(x)) if write is not _twice else _scaled_slice(net, net.first(x))
    expected = core.mean_var(seen, 1) if write is not _twice else gaussian.relu(*core.mean_var(seen, 1))
    torch.testing.assert_close(input_moments(net.second), expected, rtol=1e-4, atol=1e-4)


def test_a_write_into_a_part_of_a_constant_is_refused_and_an_example_cannot_help():
    for options in ({}, {"example": X}):
        with pytest.raises(NoRuleError, match=r"'mul_' in the network's own forward writes .*out of place\.$"):
            between(_constant_slice, **options)


def test_a_write_that_nobody_else_reads_is_an_operation_like_any():
    net = between(lambda net, h: F.relu_(h.flatten(2)).unflatten(2, (8, 8)))
    torch.testing.assert_close(input_moments(net.second), gaussian.relu(*handed_on(net)))


@pytest.mark.parametrize("norm", ["weight", "batch"])
def test_a_batch_norm_is_not_merged_over_a_write(norm):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            h = self.conv(x)
            h[:, :2].mul_(100)
            return self.bn(h)

    net = randomize_(Net()).eval()
    assert relative(convert(net, norm, "point")(X), net(X)) < 1e-4


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


class Scaled(nn.Module):
    """Takes an argument that is no batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, t):
        return self.second(self.first(x).relu() * t)


@pytest.mark.parametrize("norm", networks.NORMS)
@pytest.mark.parametrize("shape", [(), (1,), (8,), (1, 8)])
@pytest.mark.parametrize("batch", [1, 8, 16])
def test_an_argument_that_is_no_batch_is_not_cut(norm, shape, batch):
    net, x, t = Scaled().eval(), normal(batch, 4), normal(1, *shape)[0].abs() + 0.5
    got = bayesnorm.convert(net, norm=norm, scale="point", example=(x, t)).eval()
    assert relative(got(x, t), net(x, t)) < 1e-4


def test_an_argument_longer_than_what_is_measured_is_not_cut():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x, table):
            return self.second(torch.special.bessel_j0(self.first(x)) + table[400])

    net, x, table = Looks().eval(), normal(16, 4), normal(500, 8)
    with pytest.warns(UserWarning, match="no moment rule"):
        got = bayesnorm.convert(net, norm="analytic", scale="point", example=(x, table)).eval()
    assert relative(got(x, table), net(x, table)) < 1e-4


def test_an_example_without_a_batch_is_refused():
    with pytest.raises(ValueError, match="pass a batch of inputs"):
        bayesnorm.convert(nn.Linear(4, 3), norm="weight", scale="point", example=torch.tensor(1.0))


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
