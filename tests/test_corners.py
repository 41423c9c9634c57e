"""Networks with habits of their own: what they name, store, subclass and call must survive conversion."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from members import MEMBERS, build, inputs
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import NormConv2d, NormLinear, norm_layers
from bayesnorm.moments import Moments, NoRuleError

X = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


class OwnBuffers(nn.Module):
    """Standardizes its input with buffers whose names the library would like to use."""

    def __init__(self):
        super().__init__()
        self.register_buffer("input_mean", torch.full((1, 3, 1, 1), 0.5))
        self.register_buffer("noise_key", torch.full((1, 3, 1, 1), 2.0))
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv((x - self.input_mean) / self.noise_key))


@pytest.mark.parametrize("stats", [None, ([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])])
def test_buffers_of_the_users_own_are_left_alone(stats):
    torch.manual_seed(0)
    net = OwnBuffers().eval()
    got = bayesnorm.convert(net, norm="analytic", scale="bayes", input_stats=stats)
    assert torch.equal(got.input_mean, net.input_mean)
    assert torch.equal(got.noise_key, net.noise_key)
    assert relative(got(X), net(X)) < 1e-5
    assert not torch.equal(got.train()(X), got(X))
    assert bayesnorm.predict(got, X[:4], samples=3).probs.isfinite().all()
    assert set(bayesnorm.fold(got).state_dict()) == {"input_mean", "noise_key", "conv.weight", "conv.bias"}


class StoresMaps(nn.Module):
    """Keeps activations for its caller in a dict and a list."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.maps, self.shapes = {}, []

    def forward(self, x):
        self.maps["conv"] = self.conv(x)
        self.shapes.append(x.shape)
        return self.bn(self.maps["conv"]).relu()


def test_what_forward_stores_in_tables_is_undone_and_counts_as_an_output():
    torch.manual_seed(0)
    net = StoresMaps().eval()
    got = bayesnorm.convert(net, norm="analytic", scale="point")
    assert got.maps == {}
    assert got.shapes == []
    assert relative(got(X), net(X)) < 1e-5
    assert relative(got.maps["conv"], net.maps["conv"]) < 1e-5


class MyConv(nn.Conv2d):
    """Torch's convolution with a method more."""

    def describe(self):
        return "mine"


class OtherConv(nn.Conv2d):
    """Not torch's convolution any more."""

    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_subclasses_are_normalized_if_they_compute_what_torch_computes(norm):
    torch.manual_seed(0)
    net = nn.Sequential(MyConv(3, 4, 3), nn.ReLU(), OtherConv(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    got = bayesnorm.convert(net, norm=norm, scale="bayes").eval()
    assert [type(m) for m in got if not isinstance(m, nn.ReLU)] == [NormConv2d, OtherConv, NormConv2d]
    assert relative(got(X), net(X)) < 1e-5
    assert type(bayesnorm.fold(got)[0]) is nn.Conv2d


def softsign(x):
    """An operation of the user's own, made of others that have no rule together."""
    return x / (1 + x.abs())


class Soft(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 128)

    def forward(self, x):
        return self.second(softsign(self.first(x)))


def test_a_rule_that_declines_names_the_place_and_example_replaces_it():
    torch.manual_seed(0)
    x = torch.randn(256, 64)
    with pytest.raises(NoRuleError, match=r"div.*network's own forward.*register.*example="):
        bayesnorm.convert(Soft(), norm="analytic", scale="point", input_size=(64,))
    net = Soft().eval()
    with pytest.warns(UserWarning, match="no moment rule for 'div'"):
        got = bayesnorm.convert(net, norm="analytic", scale="point", example=x)
    assert relative(got(x), net(x)) < 1e-5


@pytest.mark.filterwarnings("ignore:no moment rule:UserWarning")
def test_held_moments_are_those_of_the_network_that_starts_afresh():
    torch.manual_seed(0)
    x = torch.randn(256, 64)
    got = bayesnorm.convert(Soft(), norm="analytic", scale="point", example=x, preserve=False).eval()
    # 256 samples x 128 channels, correlated over channels: the std of the std is far below this.
    assert abs(got(x).std(0).mean().item() - 1) < 0.1


def test_a_rule_of_a_python_function_is_used():
    @bayesnorm.moments.register(softsign)
    def rule(m):
        calls.append(m)
        return Moments(m.mean * 0, m.var * 0 + 0.2)

    calls: list[Moments] = []
    try:
        torch.manual_seed(0)
        net, x = Soft().eval(), torch.randn(16, 64)
        got = bayesnorm.convert(net, norm="analytic", scale="point", input_size=(64,))
        assert calls
        assert softsign.__name__ == "softsign"
        assert relative(got(x), net(x)) < 1e-5
    finally:
        del bayesnorm.moments.core._rules[softsign]


def test_a_failed_conversion_leaves_handles_of_hooks_working():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    handle = net[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="negative"):
        bayesnorm.convert(net, norm="analytic", scale="point", input_stats=(0.0, -1.0), inplace=True)
    assert len(net[0]._forward_hooks) == 1
    handle.remove()
    assert not net[0]._forward_hooks


def test_state_of_a_network_with_statistics_loads_into_one_without():
    def build(stats):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
        return bayesnorm.convert(net, norm="analytic", scale="bayes", input_stats=stats).eval()

    saved, fresh = build(bayesnorm.input_stats(X * 2 + 1)), build(None)
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh(X), saved(X))


@pytest.mark.parametrize(
    ("layer", "size"),
    [(nn.Linear, ()), (lambda i, o: nn.Conv1d(i, o, 3), (9,)), (lambda i, o: nn.Conv3d(i, o, 2), (5, 5, 5))],
)
def test_statistics_per_channel_and_as_one_number_load_into_each_other(layer, size):
    x = torch.randn(20, 6, *size, generator=torch.Generator().manual_seed(0)) * 2 + 1

    def build(stats):
        torch.manual_seed(0)
        net = nn.Sequential(layer(6, 4), nn.ReLU(), layer(4, 2))
        return bayesnorm.convert(net, norm="analytic", scale="bayes", input_stats=stats, input_size=(6, *size)).eval()

    many, one = build(bayesnorm.input_stats(x)), build(None)
    vectors, scalars = (copy.deepcopy(net.state_dict()) for net in (many, one))
    fresh = pickle.loads(pickle.dumps(copy.deepcopy(one)))
    fresh.load_state_dict(vectors)
    assert torch.equal(fresh(x), many(x))
    assert torch.equal(fresh.input_mean, many.input_mean)
    fresh.load_state_dict(scalars)
    assert torch.equal(fresh(x), one(x))
    assert scalars["input_mean"].shape == (1,)
    with pytest.raises(RuntimeError, match="size mismatch for input_mean"):
        one.load_state_dict(vectors | {"input_mean": torch.zeros(5)})
    folded = bayesnorm.fold(fresh)
    assert not any(module._load_state_dict_pre_hooks for module in folded.modules())


class MyNorm(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels, momentum=0.01)


def test_folding_a_subclass_of_batch_norm_gives_torchs_own():
    torch.manual_seed(0)
    net = nn.Sequential(nn.ReLU(), MyNorm(3), nn.Conv2d(3, 2, 1)).eval()
    got = bayesnorm.convert(net, norm="analytic", scale="point")
    plain = bayesnorm.fold(got)
    assert type(plain[1]) is nn.BatchNorm2d
    assert relative(plain(X), net(X)) < 1e-5


def test_elbo_takes_what_a_callable_nll_understands():
    net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes")
    out, y = net(torch.randn(8, 4)), torch.randint(3, (8,))
    mixed = bayesnorm.ELBO(net, 100, nll=lambda o, t: t[2] * F.cross_entropy(o[0], t[0]) + F.cross_entropy(o[1], t[1]))
    terms = mixed((out, out), (y, y, 0.5))
    assert torch.allclose(terms.total, terms.nll + terms.kl / 100)
    soft = bayesnorm.ELBO(net, 100, nll=nn.CrossEntropyLoss(), targets_per_sample=1)
    terms = soft(out, F.one_hot(y, 3).float())
    assert torch.allclose(terms.total, terms.nll + terms.kl / 100)


class Pyramid(nn.Module):
    """A head that is called with a dict of maps."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), Head()

    def forward(self, x):
        return self.head({"maps": self.stem(x).relu()})


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 2)

    def forward(self, maps):
        return self.fc(self.pool(maps["maps"]).flatten(1))


def test_modules_called_with_a_dict_draw_their_noise():
    net = bayesnorm.convert(Pyramid(), norm="weight", scale="bayes").train()
    assert [type(m) for m in norm_layers(net).values()] == [NormConv2d, NormLinear]
    assert net(X).shape == (64, 2)
    assert not torch.equal(net(X), net(X))


def test_a_copy_made_while_sampling_does_not_go_on_sampling():
    import copy

    net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes").eval()
    with bayesnorm.sampling(net):
        twin = copy.deepcopy(net)
    x = torch.randn(2, 4)
    assert torch.equal(twin(x), twin(x))


def test_a_multilayer_perceptron_on_images_takes_the_statistics_of_their_channels():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).eval()
    got = bayesnorm.convert(net, norm="analytic", scale="bayes", input_stats=bayesnorm.input_stats(X))
    assert relative(got(X), net(X)) < 1e-5
    assert got.input_mean.shape == (3,)


def test_a_network_converted_in_inference_mode_trains():
    with torch.inference_mode():
        net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes")
    net(torch.randn(2, 4)).sum().backward()
    assert net.noise_step == 1


def test_predict_says_that_it_needs_one_tensor():
    class Dict(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return {"out": self.fc(x)}

    net = bayesnorm.convert(Dict(), norm="weight", scale="bayes")
    for samples in (0, 3):
        with pytest.raises(ValueError, match="returned dict"):
            bayesnorm.predict(net, torch.randn(2, 4), samples=samples)


def drop_floor(x, keep):
    return x.div(keep) * (keep + torch.rand((x.shape[0], 1, 1, 1), device=x.device)).floor_()


def drop_mask(x, keep):
    return x / keep * (torch.rand(x.shape[0], 1, 1, 1, device=x.device) < keep).float()


def drop_where(x, keep):
    return torch.where(torch.rand(x.shape[0], 1, 1, 1, device=x.device) > 1 - keep, x / keep, 0.0)


class Dropping(nn.Module):
    def __init__(self, drop, keep=0.5):
        super().__init__()
        self.first, self.second, self.drop, self.keep = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 32, 1), drop, keep

    def forward(self, x):
        x = self.first(x)
        return self.second(self.drop(x, self.keep) if self.training else x)


@pytest.mark.parametrize("drop", [drop_floor, drop_mask, drop_where])
def test_stochastic_depth_has_the_variance_of_dropout_however_it_is_written(drop):
    torch.manual_seed(0)
    net = bayesnorm.convert(Dropping(drop), norm="analytic", scale="point", preserve=False, input_size=(3, 8, 8))
    layer = net.second
    mean, var = layer.opening.runtime.statistics(layer.opening)[layer.index]
    assert torch.allclose(mean, torch.zeros(16), atol=1e-6)
    assert torch.allclose(var, torch.full((16,), 2.0), atol=1e-5)  # (v + m^2) / keep - m^2 with v = 1, m = 0


@pytest.mark.parametrize("name", ["vgg16_bn", "efficientnet_b0", "shufflenet_v2", "unet"])
def test_published_networks_pickle_whole(name):
    import pickle

    from architectures import CASES, randomize_

    torch.manual_seed(0)
    net = bayesnorm.convert(randomize_(CASES[name].build()), norm="analytic", scale="bayes").eval()
    twin = pickle.loads(pickle.dumps(net))
    x = torch.randn(2, *CASES[name].input_size)
    assert torch.equal(twin(x), net(x))
    outputs = []
    for one in (twin.train(), net.train()):
        torch.manual_seed(1)  # dropout and stochastic depth
        outputs.append(one(x))
    assert torch.equal(*outputs)


class Counting(nn.Module):
    """Changes a buffer of its own in forward, and uses it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        self.scale.mul_(0.5)
        return self.bn(self.conv(x * self.scale))


def test_the_moment_pass_changes_no_buffer_of_the_network():
    net = bayesnorm.convert(Counting(), norm="analytic", scale="point", input_size=(3, 8, 8)).eval()
    assert net.scale == 1.0
    net(X)
    assert net.scale == 0.5


@pytest.mark.parametrize("kind", ["1", nn.BatchNorm2d])
def test_an_excluded_batch_norm_hands_on_its_own_moments(kind):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU()).eval()
    with torch.no_grad():
        net[1].weight.uniform_(0.5, 2)
    got = bayesnorm.convert(net, norm="analytic", scale="point", exclude=kind, include="3")
    assert type(got[1]) is nn.BatchNorm2d
    assert relative(got(X), net(X)) < 1e-5


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_functional_gradients_go_through_a_converted_network(norm):
    net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), norm=norm, scale="bayes").eval()
    x = torch.randn(5, 4)
    expected = torch.autograd.grad(net(x.requires_grad_()).sum(), x)[0]
    got = torch.func.grad(lambda x: net(x).sum())(x.detach())
    assert torch.allclose(got, expected, atol=1e-6)


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.first(x)
        x[:, :4] = 0
        return self.second(x)


def test_a_write_into_an_activation_is_not_ignored():
    with pytest.raises(NoRuleError, match="__setitem__"):
        bayesnorm.convert(Writes(), norm="analytic", scale="point", input_size=(3, 8, 8))


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_shapes_on_the_meta_device(norm, scale):
    net, x = build(norm, scale), inputs()
    expected = net.eval()(x).shape
    there = net.to("meta")
    assert there.eval()(x.to("meta")).shape == expected
    assert there.train()(x.to("meta")).shape == expected


class Attends(nn.Module):
    """Torch's own transformer layer: its output projection is used by a function, not called."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 2, stride=2)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 5)
        nn.init.normal_(self.encoder.self_attn.out_proj.bias)

    def forward(self, x):
        return self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2))[:, 0])


@pytest.mark.filterwarnings("ignore:no moment rule", "ignore:'encoder.self_attn.out_proj' is left as it is")
@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_attention_converts_and_only_what_is_called_is_normalized(norm):
    torch.manual_seed(0)
    net = Attends().eval()
    got = bayesnorm.convert(net, norm=norm, scale="bayes", example=X)
    before = got(X)
    assert relative(before, net(X)) < 1e-5
    assert not isinstance(got.encoder.self_attn.out_proj, NormLinear)
    bayesnorm.project_(got)
    assert relative(got(X), before) < 1e-5
    assert relative(bayesnorm.fold(got)(X), before) < 1e-5


class Words(nn.Module):
    """Reads whole numbers, and the weight of its head twice: no guess of an input runs."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, words):
        return self.head(self.embed(words).mean(1)) @ self.head.weight


def test_a_network_that_no_guess_runs_wants_an_example():
    """What else reads a weight is seen in a run only."""
    words = torch.randint(10, (5, 7), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"did not run on inputs .* example="):
        bayesnorm.convert(Words(), norm="weight", scale="bayes")
    with pytest.raises(ValueError, match="nothing to normalize"):
        bayesnorm.convert(Words(), norm="weight", scale="bayes", example=words)


class ReadsItsNorm(nn.Module):
    """Uses numbers of its batch norms beside calling them."""

    def __init__(self, name):
        super().__init__()
        self.conv, self.bn, self.name = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), name
        self.last, self.norm = nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x):
        y = self.bn(self.conv(x)) * getattr(self.bn, self.name).view(1, -1, 1, 1)
        return self.norm(input=self.last(y))


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
@pytest.mark.parametrize("norm", ["batch", "weight", "analytic"])
def test_a_batch_norm_whose_numbers_are_read_elsewhere_is_left_alone(norm, name):
    torch.manual_seed(0)
    net = ReadsItsNorm(name).eval()
    nn.init.normal_(net.bn.bias)
    net.bn.running_mean.normal_()
    with pytest.warns(UserWarning, match="'bn' is left as it is: its weight, bias or statistics are used elsewhere"):
        got = bayesnorm.convert(net, norm=norm, scale="bayes", example=X)
    assert isinstance(got.bn, nn.BatchNorm2d)
    assert isinstance(got.last, NormConv2d)
    assert relative(got(X), net(X)) < 1e-5


class Spectrum(nn.Module):
    """Complex numbers on the way to the first convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.last(self.conv(torch.fft.rfft2(x).abs()).relu())


def test_what_follows_complex_numbers_is_measured():
    torch.manual_seed(0)
    net = Spectrum().eval()
    with pytest.warns(UserWarning, match="no moment rule for"):
        got = bayesnorm.convert(net, norm="analytic", scale="bayes", example=X)
    assert relative(got(X), net(X)) < 1e-5


class Flat(nn.Module):
    """A batch norm over a flattened map tells the size of the input, a convolution alone does not."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm1d(144), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        y = self.conv(x)
        return self.last(self.bn(y.flatten(1)).view_as(y))


def test_a_guess_that_contradicts_a_batch_norm_is_not_taken():
    torch.manual_seed(0)
    net = Flat().eval()
    got = bayesnorm.convert(net, norm="analytic", scale="bayes")
    assert relative(got(X), net(X)) < 1e-5


class Named(nn.Module):
    """One argument, a dict of tensors."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, batch):
        return self.bn(self.conv(batch["image"] * batch["gain"]))


@pytest.mark.parametrize("norm", ["batch", "weight", "analytic"])
def test_an_example_may_be_a_dict_of_tensors(norm):
    torch.manual_seed(0)
    net = Named().eval()
    batch = {"image": X, "gain": torch.ones(len(X), 1, 1, 1)}
    got = bayesnorm.convert(net, norm=norm, scale="bayes", example=(batch,))
    assert relative(got(batch), net(batch)) < 1e-5


@pytest.mark.parametrize(
    ("norm", "scale"), [("weight", "bayes"), ("weight", "noise"), ("analytic", "point"), ("batch", "point")]
)
def test_copies_of_data_parallel_are_refused_where_layers_share_something(norm, scale):
    """What ``nn.DataParallel`` calls on each device: torch marks the copies."""
    net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), norm=norm, scale=scale)
    replica = net._replicate_for_data_parallel()
    if (norm, scale) == ("batch", "point"):
        assert torch.equal(replica.eval()(X[:, 0, 0, :4]), net.eval()(X[:, 0, 0, :4]))
        return
    with pytest.raises(ValueError, match="use DistributedDataParallel"):
        replica(X[:, 0, 0, :4])
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        bayesnorm.convert(nn.DataParallel(net), norm=norm, scale=scale)


def numbers():
    return [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("given", [numbers(), torch.tensor(numbers()).numpy()])
def test_what_is_no_tensor_is_named(given):
    net = bayesnorm.convert(nn.Sequential(nn.Linear(2, 3)), norm="weight", scale="bayes")
    for function in (
        bayesnorm.input_stats,
        lambda x: bayesnorm.predict(net, x),
        lambda x: bayesnorm.init_from_data_(net, x),
    ):
        with pytest.raises(ValueError, match=f"as one tensor.*, not {type(given).__name__}"):
            function(given)


def test_arguments_of_another_kind_are_named():
    net = nn.Sequential(nn.Linear(2, 3))
    got = bayesnorm.convert(net, norm="weight", scale="bayes")
    with pytest.raises(ValueError, match=r"samples=2\.5: pass the number of draws"):
        bayesnorm.predict(got, X[:, 0, 0, :2], samples=2.5)
    with pytest.raises(ValueError, match=r"exclude=Linear.*: pass a name pattern, a module type or a predicate"):
        bayesnorm.convert(net, norm="weight", scale="bayes", exclude=net[0])
    with pytest.raises(ValueError, match=r"2 pairs for a network of 1 inputs: pass a tuple \(mean, var\)"):
        bayesnorm.convert(net, norm="analytic", scale="bayes", input_stats=[torch.zeros(2), torch.ones(2)])


def test_numbers_of_data_may_be_of_any_integer_type():
    net = bayesnorm.convert(nn.Sequential(nn.Linear(2, 3)), norm="weight", scale="bayes")
    assert bayesnorm.ELBO(net, n_data=torch.tensor(12)).n_data == 12
    with pytest.raises(ValueError, match=r"n_data=12\.0"):
        bayesnorm.ELBO(net, n_data=12.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:'layers.0.self_attn.out_proj' is left")
def test_nested_tensors_are_refused_where_scales_are_drawn():
    """Torch's encoder packs padded sequences into one in evaluation mode without gradients."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    x, padded = torch.randn(3, 5, 8), torch.arange(5).expand(3, 5) >= torch.tensor([[5], [3], [2]])
    net = bayesnorm.convert(encoder, norm="weight", scale="bayes", example=x).eval()
    with torch.no_grad(), bayesnorm.sampling(net):
        assert net(x).isfinite().all()
        with pytest.raises(ValueError, match="enable_nested_tensor=False"):
            net(x, src_key_padding_mask=padded)
