"""Equal operations run as one: the same statistics as each on its own."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from networks import input_moments, normal, relative
from torch import nn

import bayesnorm
from bayesnorm.layers import NormLayer
from bayesnorm.moments import gaussian
from bayesnorm.moments.core import Moments, elementwise, find, is_elementwise
from bayesnorm.moments.merged import Joined, Part, join, together


class Branches(nn.Module):
    """Two kinds of activations at two depths, a sum, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Conv2d(3, c, 3) for c in (4, 5, 4)])
        self.second = nn.ModuleList([nn.Conv2d(c, 4, 1) for c in (4, 5, 4)])
        self.last = nn.Conv2d(4, 6, 1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = (layer(x) for layer in self.first)
        a, b, c = a.relu(), torch.relu(b), nn.functional.leaky_relu(c, 0.2)
        a, b, c = (layer(h) for layer, h in zip(self.second, (a, b, c), strict=True))
        y = self.last(2 * (a.relu() + b.relu()).tanh() * c.sigmoid() * 0.5)
        return self.head(y.relu().mean((2, 3)))


def network(scale: str = "bayes") -> nn.Module:
    torch.manual_seed(0)
    net = bayesnorm.convert(Branches(), norm="analytic", scale=scale, preserve=False, input_size=(3, 8, 8)).double()
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, NormLayer):
                layer.scale.s.uniform_(0.5, 2)
                layer.scale.b.normal_()
    return net


def statistics(net: nn.Module, merged: bool) -> list[torch.Tensor]:
    runtime = net.head.opening.runtime
    plan = runtime.program.plan([layer for layer in runtime.layers if layer.wants_moments])
    if not merged:
        plan.groups = [(number, [[node] for node in nodes]) for number, nodes in plan.nodes]
    return [value for pair in runtime.program.run(plan) for value in pair]


@pytest.mark.parametrize("scale", ["point", "noise", "bayes"])
def test_statistics_and_gradients_are_those_of_each_operation_on_its_own(scale):
    net = network(scale)
    parameters = [p for layer in net.modules() if isinstance(layer, NormLayer) for p in (layer.scale.s, layer.scale.b)]
    got, expected = (statistics(net, merged) for merged in (True, False))
    torch.testing.assert_close(got, expected)
    gradients = [
        torch.autograd.grad(sum(value.sin().sum() for value in found), parameters, allow_unused=True)
        for found in (got, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_equal_operations_are_in_one_group_and_none_before_what_it_reads():
    runtime = network().head.opening.runtime
    plan = runtime.program.plan([layer for layer in runtime.layers if layer.wants_moments])
    (_, groups), (_, nodes) = plan.groups[0], plan.nodes[0]
    assert sorted(id(n) for group in groups for n in group) == sorted(map(id, nodes))
    sizes = sorted(len(group) for group in groups)
    assert sizes[-1] == 7  # all convolutions hand on the moments of their scales
    assert len(groups) < len(nodes) - 7
    known = set(runtime.program.traces[0].inputs)
    for group in groups:
        for node in group:
            assert node.layer is not None or set(node.step.inputs()) <= known
        known.update(out for node in group for out in node.outs)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_and_pickles_run_the_same_groups(clone):
    net = network()
    torch.testing.assert_close(statistics(clone(net), True), statistics(net, True))


def test_moments_are_joined_broadcast_and_cut_apart_again():
    first = Moments(torch.randn(1, 3, 1, 1), torch.rand(1, 3, 1, 1))
    second = Moments(torch.randn(1, 2), torch.rand(1, 1))
    found = together(find(torch.relu), [first, second], (), {})
    assert found is not None
    for m, got in zip((first, second), found, strict=True):
        expected = find(torch.relu)(m)
        torch.testing.assert_close(got.mean, expected.mean)
        torch.testing.assert_close(got.var, expected.var.expand_as(got.var))
    assert join(found) is found[0].joined
    assert join(found[::-1]) is not found[0].joined
    sized = found[1].sized(torch.Size((7, 2)))
    assert isinstance(sized, Part)
    assert sized.size == sized.cut().size == (7, 2)
    assert type(sized.cut()) is Moments


def test_other_dtypes_are_not_joined():
    assert (
        join([Moments(torch.zeros(2), torch.ones(2)), Moments(torch.zeros(2).double(), torch.ones(2).double())]) is None
    )


def test_what_nobody_reads_is_not_cut():
    joined = Joined(torch.zeros(5), torch.ones(5), [(1, 2), (1, 3)])
    parts = joined.parts()
    assert "vectors" not in vars(joined)
    assert isinstance(parts[1], Part)
    assert parts[1].mean.shape == parts[1].var.shape == (1, 3)


def test_rules_of_users_run_one_by_one_unless_they_are_marked():
    def rule(m: Moments) -> Moments:
        return m

    assert not is_elementwise(rule)
    assert is_elementwise(elementwise(rule))
    assert is_elementwise(find(torch.tanh))
    assert not is_elementwise(find(torch.softmax))


class Applied(nn.Module):
    """Linear layers with an operation behind the ReLU of each."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.operation(self.first(x).relu())
        return self.last(self.operation(self.second(x).relu()))


SAME = {
    "h * h": (lambda h: h * h, gaussian.square),
    "h + h": (lambda h: h + h, lambda mean, var: (2 * mean, 4 * var)),
    "h - h": (lambda h: h - h + 1, lambda mean, var: (torch.ones_like(mean), torch.zeros_like(var))),
    "maximum": (lambda h: torch.maximum(h, h), lambda mean, var: (mean, var)),
}


@pytest.mark.parametrize("name", SAME)
def test_an_activation_with_itself_is_one_variable(name):
    """Each layer hands on (b, s^2): the ReLU and the operation of that are what the next one gets."""
    operation, expected = SAME[name]
    torch.manual_seed(0)
    net = bayesnorm.convert(Applied(operation), norm="analytic", scale="point", preserve=False).double().eval()
    for layer, previous in ((net.second, net.first), (net.last, net.second)):
        nn.init.normal_(previous.scale.b)
        nn.init.uniform_(previous.scale.s, 0.5, 2)
        relu = gaussian.relu(previous.scale.b, previous.scale.s**2)
        torch.testing.assert_close(input_moments(layer), expected(*relu))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own, which it hides
@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("preserve", [True, False])
def test_an_activation_with_itself_compiles_to_the_same_network(name, preserve):
    torch.manual_seed(0)
    net, x = Applied(SAME[name][0]).eval(), normal(16, 6)
    got = bayesnorm.convert(net, norm="analytic", scale="point", preserve=preserve).eval()
    torch._dynamo.reset()
    assert relative(torch.compile(got, fullgraph=True, backend="eager")(x), got(x)) < 1e-6
    assert not preserve or relative(got(x), net(x)) < 1e-5
