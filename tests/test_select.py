"""Which layers are normalized, and which convolution a BatchNorm belongs to."""

import networks
import pytest
import torch
import torch.nn.functional as F
from architectures import randomize_
from networks import NORMS, convert, layers, normal, plain, relative
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import bayesnorm
from bayesnorm.layers import ChannelNorm, NormConv2d, NormConvTranspose2d, NormLinear

X = normal(4, 3, 8, 8)
X16 = normal(2, 3, 16, 16)


def kinds(net):
    """Type of each normalized layer by its name."""
    return {name: type(layer) for name, layer in layers(net).items()}


# With BatchNorm: exactly those.


@pytest.mark.parametrize("norm", NORMS)
def test_a_network_with_batch_norm_gets_exactly_those_replaced(norm):
    got = convert(plain(), norm, "bayes")
    expected = [NormConv2d, nn.Identity, nn.ReLU, NormConv2d, nn.Identity, nn.LeakyReLU]
    assert [type(m) for m in got][:6] == expected
    assert type(got[8]) is nn.Linear
    assert (got[0].bias, got[3].bias) == (None, None)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "efficientnet_b0"])
def test_head_and_gates_stay_plain(name):
    net, _, _ = networks.reference(name)
    got = convert(net, "weight", "point")
    assert len(layers(got)) == sum(isinstance(m, _BatchNorm) for m in net.modules())
    before = dict(net.named_modules())
    bare = {n for n, m in got.named_modules() if type(m) in (nn.Conv2d, nn.Linear)}
    assert {n for n, m in before.items() if isinstance(m, nn.Linear)} <= bare
    gates = {n for n in before if any(part in n for part in ("reduce", "expand.", "fc1", "fc2")) and n in bare}
    assert name == "resnet18" or gates
    for n in bare:
        assert torch.equal(got.get_submodule(n).weight, before[n].weight)
        assert (before[n].bias is None) == (got.get_submodule(n).bias is None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv_to_norm_and_skip", {"bn1": ChannelNorm}),
        ("conv_to_two_norms", {"norm_a": ChannelNorm, "norm_b": ChannelNorm}),
        ("norm_after_two_convs", {"norm": ChannelNorm}),
        ("norm_on_input", {"norm_in": ChannelNorm, "norm": ChannelNorm}),
        ("preact_tiny", {"branch.0": ChannelNorm, "branch.2": NormConv2d, "norm": ChannelNorm}),
        ("shared_block", {"stem.0": NormConv2d, "block.0": NormConv2d}),
        ("aliased_module", {"conv": NormConv2d}),
        ("grouped_transposed", {"up1": NormConvTranspose2d, "up2": NormConvTranspose2d}),
        ("mlp_bn", {"layers.0": NormLinear, "layers.4": NormLinear, "layers.8": NormLinear}),
        ("group_norm", {"fc": NormLinear, "conv1": NormConv2d, "conv2": NormConv2d}),
    ],
)
@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_a_norm_joins_the_convolution_that_is_its_own_alone(norm, name, expected):
    assert kinds(convert(networks.build(name), norm, "point")) == expected


class Outputs(nn.Module):
    """The response of the convolution is an output as well."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        raw = self.conv(x)
        return {"raw": raw, "out": [self.norm(raw)]}


def test_a_response_that_is_returned_stays_what_it_was():
    net = randomize_(Outputs()).eval()
    got = convert(net, "analytic", "point")
    assert kinds(got) == {"norm": ChannelNorm}
    assert torch.equal(got(X)["raw"], net(X)["raw"])
    assert relative(got(X)["out"][0], net(X)["out"][0]) < 1e-4


class FunctionalConv(nn.Module):
    """A module that holds the parameters of a functional call, with and without a norm behind it."""

    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), norm, nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.last(self.norm(F.conv2d(x, self.conv.weight, self.conv.bias)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("has_bn", [True, False])
def test_a_module_that_only_holds_parameters_is_left_alone(norm, has_bn):
    net = randomize_(FunctionalConv(nn.BatchNorm2d(4) if has_bn else nn.Tanh())).eval()
    if has_bn:
        got = convert(net, norm, "point")
    else:
        with pytest.warns(UserWarning, match="'conv' is left as it is"):
            got = convert(net, norm, "point", X)
    assert kinds(got) == ({"norm": ChannelNorm} if has_bn else {"last": NormConv2d})
    assert relative(got(X), net(X)) < 1e-4


def test_a_network_that_calls_no_module_is_refused():
    net, _, _ = networks.reference(networks.UNCALLED)
    with pytest.warns(UserWarning, match="'norm' is left as it is"), pytest.raises(ValueError, match="nothing to norm"):
        bayesnorm.convert(net, norm="weight", scale="point")


def test_a_batch_norm_that_is_never_called_is_left_with_a_warning():
    net = plain()
    net.idle = nn.Identity()
    net.idle.norm = nn.BatchNorm2d(8)
    with pytest.warns(UserWarning, match=r"'idle\.norm' is left as it is"):
        got = convert(net, "analytic", "point")
    assert type(got.idle.norm) is nn.BatchNorm2d
    assert len(layers(got)) == 2


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("norm", NORMS)
def test_a_layer_that_is_never_called_is_left_with_a_warning(norm):
    with pytest.warns(UserWarning, match="'idle' is left as it is"):
        got = convert(Idle().eval(), norm, "point", X)
    assert kinds(got) == {"used": NormConv2d}
    assert type(got.idle) is nn.Conv2d


class NormAndRectify(nn.BatchNorm2d):
    def forward(self, input):
        return F.relu(super().forward(input))


@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_norm_with_a_forward_of_its_own_keeps_its_function(norm):
    net = randomize_(nn.Sequential(nn.Conv2d(3, 8, 3), NormAndRectify(8), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)))
    net.eval()
    try:
        with pytest.warns(UserWarning, match="'1'"):
            got = convert(net, norm, "point")
    except ValueError as error:  # refusing it is right as well, if it is named
        assert "'1'" in str(error)  # noqa: PT017
    else:
        assert relative(got(X), net(X)) < 1e-4
        assert isinstance(got[2], NormConv2d)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("features", [5, 6])
def test_a_norm_on_another_axis_than_the_linear_layers_is_not_its_own(norm, features):
    net = randomize_(nn.Sequential(nn.Linear(8, features), nn.BatchNorm1d(5), nn.Linear(features, 3))).eval()
    x = normal(4, 5, 8)
    got = convert(net, norm, "point", input_size=(5, 8))
    assert kinds(got) == {"1": ChannelNorm}
    assert relative(got(x), net(x)) < 1e-4


def test_a_parametrized_convolution_keeps_its_parametrization():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)).eval()
    got = convert(net, "analytic", "point")
    assert kinds(got) == {"1": ChannelNorm}
    assert nn.utils.parametrize.is_parametrized(got[0], "weight")
    assert relative(got(X), net(X)) < 1e-4


# Without BatchNorm: every convolution and linear layer.


@pytest.mark.parametrize("norm", NORMS)
def test_a_network_without_batch_norm_gets_a_norm_after_each_linear_map(norm):
    net, x, _ = networks.reference("convnext_tiny")
    got = convert(net, norm, "point", x)
    assert set(layers(got)) == {n for n, m in net.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))}
    assert sum(isinstance(m, nn.LayerNorm) for m in got.modules()) == 23


# Include and exclude.


def is_head(name, module):
    return isinstance(module, nn.Linear)


def selector_name(selector):
    """An id that is the same in every process: no addresses."""
    parts = selector if isinstance(selector, (list, tuple)) else [selector]
    return "+".join(part if isinstance(part, str) else part.__name__ for part in parts)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("selector", ["8", "[7-9]", nn.Linear, is_head, ["8"], ("8", nn.Linear)], ids=selector_name)
def test_include_adds_layers(norm, selector):
    net = plain()
    got = bayesnorm.convert(net, norm=norm, scale="bayes", include=selector, example=X)
    assert kinds(got) == {"0": NormConv2d, "3": NormConv2d, "8": NormLinear}
    assert relative(got(X), net(X)) < 1e-4


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "selector", [["3", "4"], "[34]", lambda name, module: name in "34", [lambda n, m: n == "3", "4"]], ids=selector_name
)
def test_exclude_leaves_layers_alone(norm, selector):
    net = plain()
    got = bayesnorm.convert(net, norm=norm, scale="bayes", exclude=selector)
    assert kinds(got) == {"0": NormConv2d}
    assert (type(got[3]), type(got[4])) == (nn.Conv2d, nn.BatchNorm2d)
    assert relative(got(X), net(X)) < 1e-4


@pytest.mark.parametrize("norm", NORMS)
def test_excluding_the_convolution_alone_leaves_a_channel_norm(norm):
    net = plain()
    got = bayesnorm.convert(net, norm=norm, scale="point", exclude="3")
    assert kinds(got) == {"0": NormConv2d, "4": ChannelNorm}
    assert relative(got(X), net(X)) < 1e-4
    assert type(bayesnorm.fold(got)[4]) is nn.BatchNorm2d


def test_a_name_means_all_that_it_contains():
    net, x, y = networks.reference("resnet18")
    got = bayesnorm.convert(net, norm="analytic", scale="point", exclude="layer4")
    assert layers(got)
    assert not any(name.startswith("layer4") for name in layers(got))
    assert sum(isinstance(m, nn.BatchNorm2d) for m in got.layer4.modules()) == 5
    assert relative(got(x), y) < 1e-4


def test_exclude_wins_over_include():
    got = bayesnorm.convert(plain(), norm="weight", scale="point", include="8", exclude=nn.Linear)
    assert kinds(got) == {"0": NormConv2d, "3": NormConv2d}


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_exclude_leaves_the_head_of_a_network_without_batch_norm(norm):
    net, x, y = networks.reference("mlp")
    got = bayesnorm.convert(net, norm=norm, scale="bayes", exclude="output")
    assert set(layers(got)) == {n for n, m in net.named_modules() if isinstance(m, nn.Linear)} - {"output"}
    assert relative(got(x), y) < 1e-4


def test_modules_go_by_each_of_their_names():
    net = networks.build("aliased_module")
    for name in ("norm", "norm_alias"):
        got = bayesnorm.convert(net, norm="weight", scale="point", exclude=name, include="fc")
        assert kinds(got) == {"fc": NormLinear}


@pytest.mark.parametrize("argument", ["include", "exclude"])
@pytest.mark.parametrize("value", ["layer9", ["0", "layer9"], nn.Conv3d, lambda name, module: False], ids=selector_name)
def test_a_selector_that_matches_nothing_is_an_error(argument, value):
    with pytest.raises(ValueError, match=rf"{argument}=.*matches no module"):
        bayesnorm.convert(plain(), norm="weight", scale="point", **{argument: value})


def test_including_what_cannot_be_normalized_is_an_error():
    with pytest.raises(ValueError, match="include='2'"):
        bayesnorm.convert(plain(), norm="weight", scale="point", include="2")


def test_excluding_everything_is_an_error():
    with pytest.raises(ValueError, match="nothing to normalize"):
        bayesnorm.convert(plain(), norm="weight", scale="point", exclude="*")


@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("broken", [{"input_size": (3, 5)}, {"example": torch.zeros(2, 4, 8, 8)}])
def test_a_size_that_does_not_run_is_never_ignored(norm, broken):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    with pytest.raises(ValueError, match="did not run"):
        bayesnorm.convert(net, norm=norm, scale="point", **broken)


def test_another_norm_the_second_time_is_an_error():
    net = convert(plain(), "weight", "bayes")
    for norm, scale in (("analytic", "bayes"), ("weight", "point")):
        with pytest.raises(ValueError, match="'0' is normalized already"):
            convert(net, norm, scale)


def test_include_adds_to_a_converted_network():
    net = plain()
    first = convert(net, "weight", "bayes")
    got = bayesnorm.convert(first, norm="weight", scale="bayes", include="8")
    assert set(layers(got)) == {"0", "3", "8"}
    assert len({layer.index for layer in layers(got).values()}) == 3
    assert torch.equal(got.noise_key, first.noise_key)
    assert relative(got(X), net(X)) < 1e-4
