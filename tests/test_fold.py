"""Folding: torch's own layers only, the same evaluation output.

On the published architectures fold is compared in test_convert, next to convert: one conversion serves both.
"""

import copy

import networks
import pytest
import torch
from architectures import randomize_
from members import KINDS
from networks import MEMBERS, NORMS, convert, layers, normal, perturb_, plain, relative
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.parametrize import is_parametrized

import bayesnorm
from bayesnorm.runtime import Opening

MEMBER = pytest.mark.parametrize(("norm", "scale"), MEMBERS)
X = normal(4, 3, 8, 8)


def check_plain(net):
    """Nothing of the library is left: classes, hooks, buffers, attributes."""
    for name, module in net.named_modules():
        assert type(module).__module__.split(".")[0] in ("torch", "architectures", "test_fold"), name
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            assert not any(isinstance(getattr(hook, "__self__", None), Opening) for hook in hooks.values())
        assert not any("bayesnorm" in type(value).__module__ for value in vars(module).values())
        assert not any("bayesnorm" in key for key in vars(module))
    keys = set(net.state_dict())
    assert not {key for key in keys if key.split(".")[-1] in ("noise_key", "noise_step", "input_mean", "input_var")}


@MEMBER
@pytest.mark.parametrize("name", ["preact_tiny", "root_sequential", "grouped_transposed", "aliased_module", "mlp"])
def test_folded_network_has_torch_layers_only(name, norm, scale):
    net, x, _ = networks.reference(name)
    got = convert(net, norm, scale, x)
    folded = bayesnorm.fold(got)
    check_plain(folded)
    assert type(folded) is type(net)
    assert not any(module.training for module in folded.modules())
    expected = {key for key in net.state_dict() if not key.endswith("num_batches_tracked")}
    fused = {name for name, m in folded.named_modules(remove_duplicate=False) if type(m) is nn.Identity}
    expected = {key for key in expected if key.rpartition(".")[0] not in fused}
    assert expected <= set(folded.state_dict())


@MEMBER
@pytest.mark.parametrize("name", ["preact_tiny", "shared_block", "channel_softmax", "conv3d", "norm_after_two_convs"])
def test_folding_is_exact_wherever_training_went(name, norm, scale):
    net, x, y = networks.reference(name, torch.float64)
    got = perturb_(convert(net, norm, scale, x))
    folded = bayesnorm.fold(got)
    with torch.no_grad():
        expected = got(x)
        assert relative(expected, y) > 1e-3  # it went somewhere
        assert relative(folded(x), expected) < 1e-10
        assert relative(folded(3 * x + 1), got(3 * x + 1)) < 1e-10


@MEMBER
@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_type_folds_after_training_steps(kind, norm, scale):
    torch.manual_seed(0)
    net = randomize_(KINDS[kind].make())
    x = normal(8, *KINDS[kind].size)
    got = convert(net, norm, scale, x, input_size=KINDS[kind].size).train()
    optimizer = torch.optim.SGD(bayesnorm.param_groups(got, lr=1e-3))
    for _ in range(2):
        optimizer.zero_grad()
        got(x).square().mean().backward()
        optimizer.step()
        bayesnorm.project_(got)
    folded = bayesnorm.fold(got)
    assert all(module.training for module in got.modules())  # folding does not switch the network's own mode
    with torch.no_grad():
        assert relative(folded(x), got.eval()(x)) < 1e-4
    check_plain(folded)


@pytest.mark.parametrize("norm", NORMS)
def test_twin_a_ten_percent_error_of_one_folded_bias_is_seen(norm):
    net, x, _ = networks.reference("preact_tiny")
    got = convert(net, norm, "bayes")
    folded = bayesnorm.fold(got)
    folded.branch[2].bias.data *= 1.1
    with torch.no_grad():
        assert relative(folded(x), got(x)) > 1e-3


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_without_a_convolution_becomes_a_batch_norm_again(norm):
    net, x, y = networks.reference("preact_tiny")
    folded = bayesnorm.fold(convert(net, norm, "bayes"))
    assert [type(m) for m in folded.branch] == [type(m) for m in net.branch[:3]] + [nn.Identity, nn.ReLU, nn.Conv2d]
    assert type(folded.norm) is nn.BatchNorm2d
    assert folded.norm.num_features == net.norm.num_features
    # any batch norm can stand here: fine-tuning in torch starts from its statistics
    assert (folded.norm.running_var > 0).all()
    assert not folded.norm.training
    assert relative(folded(x), y) < 1e-4


@MEMBER
def test_folding_leaves_the_network_as_it_was(norm, scale):
    net = convert(networks.build("preact_tiny"), norm, scale).train()
    x = normal(2, 3, 16, 16)
    state, kinds = copy.deepcopy(net.state_dict()), [type(m) for m in net.modules()]
    rng = torch.get_rng_state()
    folded = bayesnorm.fold(net)
    assert all(torch.equal(t, state[key]) for key, t in net.state_dict().items())
    assert [type(m) for m in net.modules()] == kinds
    assert torch.equal(torch.get_rng_state(), rng)
    shared = {t.data_ptr() for t in net.state_dict().values()} & {t.data_ptr() for t in folded.state_dict().values()}
    assert not shared - {0}
    y = folded(x)
    perturb_(net)
    assert torch.equal(folded(x), y)


@MEMBER
def test_sampling_does_not_reach_a_folded_network(norm, scale):
    net = convert(plain(), norm, scale)
    y = net(X)
    with bayesnorm.sampling(net):
        folded = bayesnorm.fold(net)
    assert relative(folded(X), y) < 1e-4
    assert torch.equal(folded(X), folded(X))


@MEMBER
def test_hooks_and_aliases_survive_folding(norm, scale):
    log = []
    net = networks.build("aliased_module")
    for module in (net, net.norm, net.fc):
        module.register_forward_hook(lambda m, args, out: log.append((type(m).__name__, out)))
    got = convert(net, norm, scale)
    folded = bayesnorm.fold(got)
    assert folded.conv_alias is folded.conv
    assert folded.norm_alias is folded.norm
    x = normal(2, 3, 16, 16)
    log.clear()
    net(x)
    expected = list(log)
    log.clear()
    folded(x)
    assert len(log) == len(expected) == 3
    for (_, value), (_, before) in zip(log, expected, strict=True):
        assert relative(value, before) < 1e-4


@pytest.mark.parametrize("norm", NORMS)
def test_a_part_of_a_converted_network_folds_as_it_stands_in_the_whole(norm):
    net, x, _ = networks.reference("nested_containers")
    got = convert(net, norm, "bayes")
    part, original = got.parts["body"][0], net.parts["body"][0]
    hidden = normal(2, 16, 8, 8).relu()
    folded = bayesnorm.fold(part)
    check_plain(folded)
    assert relative(folded(hidden), original(hidden)) < 1e-4
    assert relative(got(x), net(x)) < 1e-4  # the whole still works


@MEMBER
def test_folding_stops_nothing_from_being_converted_again(norm, scale):
    net = plain(corner=False)
    folded = bayesnorm.fold(convert(net, norm, scale))
    again = convert(folded, norm, scale, X)
    assert set(layers(again)) == {"0", "3", "8"}
    assert relative(again(X), net(X)) < 1e-4


@pytest.mark.parametrize("spec", [
    bayesnorm.Bayes(stochastic_bias=True),
    bayesnorm.Bayes(per_layer_variance=True),
    bayesnorm.Bayes(prior="log-uniform", sigma_init=0.5),
    bayesnorm.Noise(sigma_u=0.5, sigma_v=0.5),
])  # fmt: skip
@pytest.mark.parametrize("norm", [bayesnorm.Analytic(first_layer="patch"), "batch"])
def test_every_option_folds_to_the_mean_scales(norm, spec):
    net = plain()
    got = perturb_(bayesnorm.convert(net, norm=norm, scale=spec, example=X).eval())
    assert relative(bayesnorm.fold(got)(X), got(X)) < 1e-5


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("parametrization", [spectral_norm, weight_norm])
def test_a_parametrized_layer_folds_to_the_weight_that_it_computes(norm, parametrization):
    got = convert(plain(), norm, "bayes")
    parametrization(got[3])
    with torch.no_grad():
        got(2 * X)
    folded = bayesnorm.fold(got)
    assert relative(folded(X), got(X)) < 1e-5
    check_plain(folded)
    assert set(folded[3].state_dict()) == {"weight", "bias"}
    assert is_parametrized(got[3])
    assert relative(bayesnorm.fold(got)(X), got(X)) < 1e-5  # the network itself is as it was


def test_a_pruned_layer_folds_once_its_weight_is_a_parameter():
    got = convert(plain(), "weight", "bayes")
    prune.random_unstructured(got[3], "weight", 0.5)
    expected = got(X)
    with pytest.raises(ValueError, match=r"'3' is computed by a hook.*prune\.remove"):
        bayesnorm.fold(got)
    prune.remove(got[3], "weight")
    folded = bayesnorm.fold(got)
    assert relative(folded(X), expected) < 1e-5
    assert (folded[3].weight == 0).float().mean() >= 0.5


def test_folding_a_plain_network_copies_it():
    net = plain().train()
    folded = bayesnorm.fold(net)
    assert folded is not net
    assert net.training
    assert relative(folded(X), net.eval()(X)) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_folding_keeps_the_dtype(dtype):
    got = convert(plain(corner=False).to(dtype), "weight", "bayes")
    folded = bayesnorm.fold(got)
    assert {t.dtype for t in folded.parameters()} == {dtype}
    y, expected = folded(X.to(dtype)).double(), got(X.to(dtype)).double()
    assert relative(y, expected) < 8 * torch.finfo(dtype).eps
