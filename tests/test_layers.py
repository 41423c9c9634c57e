"""Normalized layers: invariances over every norm x scale x layer type, one draw per sample and channel, gradients."""

import copy
import itertools
from typing import cast

import pytest
import torch
from members import (
    FULL,
    INPUT_STATS,
    KINDS,
    MEMBERS,
    NORMS,
    build,
    distance,
    gradients,
    inputs,
    layers,
    loss_of,
    train_and_eval,
    training_draws,
)
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

import bayesnorm

DTYPES = [(torch.float32, 1e-5), (torch.float64, 1e-6)]


@torch.no_grad()
def stretch_(net: nn.Module, seed: int = 0) -> None:
    """Multiply every weight vector by its own factor between 1e-3 and 1e3."""
    generator = torch.Generator().manual_seed(seed)
    for layer in layers(net):
        if layer.weight_vectors() is not None:
            channels = layer.scale.s.numel()
            factor = 10 ** (6 * torch.rand(channels, generator=generator, dtype=torch.float64) - 3)
            factor[:2] = torch.tensor([1e-3, 1e3])
            weight = cast(Tensor, layer.weight)
            # Independently of the package: which axis of the weight counts the output channels.
            if "Transpose" in type(layer).__name__:
                grouped = weight.unflatten(0, (layer.groups, -1))
                shape = (layer.groups, 1, -1, *[1] * (weight.dim() - 2))
                weight.copy_((grouped * factor.view(shape)).flatten(0, 1))
            else:
                weight.mul_(factor.view(-1, *[1] * (weight.dim() - 1)))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_length_of_weight_vectors_does_not_matter(norm, scale, kind, dtype, tolerance):
    net, x = build(norm, scale, kind, dtype), inputs(kind, dtype=dtype)
    before = train_and_eval(net, x)
    stretch_(net)
    after = train_and_eval(net, x)
    assert distance(after[0], before[0]) < tolerance
    assert distance(after[1], before[1]) < tolerance


def test_twin_a_plain_layer_behind_the_normalized_ones_does_depend_on_its_length():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    net, x = bayesnorm.convert(plain, norm="analytic", scale="point"), inputs("conv2d")
    before = train_and_eval(net, x)
    with torch.no_grad():
        net[2].weight.mul_(1.1)
    assert distance(train_and_eval(net, x)[1], before[1]) > 0.01


@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_gradient_of_a_weight_vector_is_orthogonal_to_it(norm, scale, kind):
    net, x = build(norm, scale, kind, torch.float64), inputs(kind, dtype=torch.float64)
    loss_of(net(x)).backward()
    checked = 0
    for layer in layers(net):
        weight = layer.weight_vectors()
        if weight is None:
            continue
        rows = layer.geometry.filters(weight.detach())
        slopes = layer.geometry.filters(weight.grad)
        cosine = (rows * slopes).sum(1) / (rows.norm(dim=1) * slopes.norm(dim=1)).clamp(min=1e-6)
        assert cosine.abs().max() < 1e-8
        assert slopes.norm() > 1e-3
        checked += 1
    assert checked >= 1


BATCH_FREE = [(norm, scale, kind) for norm, scale, kind in FULL if norm != "batch"]


@pytest.mark.parametrize(("norm", "scale", "kind"), BATCH_FREE)
def test_output_of_a_sample_does_not_depend_on_its_neighbours(norm, scale, kind):
    net, x = build(norm, scale, kind, torch.float64), inputs(kind, dtype=torch.float64)
    other = inputs(kind, dtype=torch.float64, seed=2) * 100
    other[1] = x[1]
    for full, mixed, part in zip(
        train_and_eval(net, x), train_and_eval(net, other), train_and_eval(net, x[:2]), strict=True
    ):
        assert distance(mixed[1], full[1]) < 1e-12
        assert distance(part[1], full[1]) < 1e-12
        assert distance(mixed[0], full[0]) > 0.1


@pytest.mark.parametrize("scale", ["point", "noise", "bayes"])
def test_twin_batch_norm_does_look_at_the_neighbours_in_training_mode_alone(scale):
    net, x = build("batch", scale, dtype=torch.float64), inputs(dtype=torch.float64)
    other = inputs(dtype=torch.float64, seed=2)
    other[1] = x[1]
    (train, evaluated), (train_mixed, mixed) = train_and_eval(net, x), train_and_eval(net, other)
    assert distance(train_mixed[1], train[1]) > 1e-2
    assert distance(mixed[1], evaluated[1]) < 1e-12


@pytest.mark.parametrize(("norm", "scale", "kind"), BATCH_FREE)
def test_batch_size_one_trains(norm, scale, kind):
    net, x = build(norm, scale, kind, torch.float64), inputs(kind, 1, torch.float64)
    start = copy.deepcopy(net)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    target = torch.zeros_like(net(x).detach())
    losses = []
    for _ in range(20):
        net.noise_step.zero_()  # the same noise, so that the losses compare
        loss = (net(x) - target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert all(not torch.equal(a, b) for a, b in zip(net.parameters(), start.parameters(), strict=True) if a.dim() > 1)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_draw_per_sample_and_channel_is_shared_over_space(norm, kind):
    """``y = (z + b) S + offset``, with z the normalized response and S one number per sample and channel."""
    net, x = build(norm, bayesnorm.Bayes(sigma_init=0.3), kind, torch.float64), inputs(kind, dtype=torch.float64)
    layer = layers(net)[-1]
    kept = {}
    handle = layer.register_forward_hook(lambda module, args, output: kept.update(x=args[0], y=output))
    draws = training_draws(net, layer, len(x))
    quiet = copy.deepcopy(layer)
    with torch.no_grad():
        quiet.scale.u.fill_(-745.0)  # sigma underflows: the mean scale
        net(x)
        handle.remove()
        y, x = kept["y"], kept["x"]
        mean = quiet(x)
        shape = [1] * y.dim()
        shape[-1 if kind.startswith("linear") else 1] = -1
        s, offset = layer.scale.s.view(shape), layer.scale.offset.view(shape)
        drawn = layer.scale.s + layer.scale.u.exp() * draws
        expected = (mean - offset) / s * drawn.reshape(len(x), *shape[1:]) + offset
    assert distance(y, expected) < 1e-9
    assert distance(y, mean) > 0.05


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_frozen_sublayer_neither_draws_nor_looks_at_the_batch(norm, scale):
    net, x = build(norm, scale, dtype=torch.float64), inputs(dtype=torch.float64)
    expected = copy.deepcopy(net).eval()
    seen = {}
    for which, model in (("frozen", net), ("evaluated", expected)):
        model[3].register_forward_pre_hook(lambda module, args, which=which: seen.update({which: args[0]}))
    net[0].eval()
    buffers = copy.deepcopy(net[0].state_dict())
    y, frozen = net(x), seen.get("frozen")
    expected(x)
    assert distance(frozen, seen["evaluated"]) < 1e-12
    assert all(torch.equal(value, buffers[name]) for name, value in net[0].state_dict().items())
    trains = norm == "batch" or scale != "point"  # the other layer, in training mode, computes something else
    assert (distance(y, expected(x)) > 1e-3) == trains


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_switching_to_eval_and_back_changes_no_state_and_eval_repeats_itself(norm, scale):
    net, x = build(norm, scale), inputs()
    net(x)
    state = copy.deepcopy(net.state_dict())
    twin = copy.deepcopy(net)
    net.eval()
    assert torch.equal(net(x), net(x))
    net.train()
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(net(x), twin(x))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", ["noise", "bayes"])
def test_every_training_call_draws_anew_and_the_counter_repeats_a_draw(norm, scale):
    net, x = build(norm, scale), inputs()
    first, second = net(x), net(x)
    assert distance(second, first) > 1e-3
    assert net.noise_step.item() == 2
    net.noise_step.zero_()
    assert torch.equal(net(x), first)


@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_gradcheck_of_every_member_with_fixed_counters(norm, scale, kind):
    net, x = build(norm, scale, kind, torch.float64), inputs(kind, 3, torch.float64)
    names = [name for name, _ in net.named_parameters()]

    def function(x: Tensor, *parameters: Tensor) -> Tensor:
        net.noise_step.zero_()
        return functional_call(net, dict(zip(names, parameters, strict=True)), x)

    parameters = [p.detach().clone().requires_grad_() for p in net.parameters()]
    assert torch.autograd.gradcheck(function, (x.requires_grad_(), *parameters), fast_mode=True, atol=1e-5)


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_gradcheck_of_every_entry_of_the_jacobian(norm, scale):
    net, x = build(norm, scale, "linear", torch.float64), inputs("linear", 3, torch.float64)
    names = [name for name, _ in net.named_parameters()]

    def function(*parameters: Tensor) -> Tensor:
        net.noise_step.zero_()
        return functional_call(net, dict(zip(names, parameters, strict=True)), x)

    parameters = [p.detach().clone().requires_grad_() for p in net.parameters()]
    assert torch.autograd.gradcheck(function, tuple(parameters))


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_zero_filter_gives_finite_output_and_gradient(norm, scale):
    net, x = build(norm, scale, preserve=False), inputs()
    with torch.no_grad():
        layers(net)[0].weight[1].zero_()
    y = net(x)
    loss_of(y).backward()
    assert y.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(net).values())


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
@pytest.mark.parametrize("by_keyword", [False, True])
def test_transposed_convolution_takes_output_size(norm, scale, by_keyword):
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 3, stride=2, bias=False)
            self.bn = nn.BatchNorm2d(4)

        def forward(self, x):
            size = [2 * x.size(-2) + 2, 2 * x.size(-1) + 1]
            return self.bn(self.up(x, output_size=size) if by_keyword else self.up(x, size))

    plain, x = Up().eval(), torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    net = bayesnorm.convert(plain, norm=norm, scale=scale, input_stats=INPUT_STATS, input_size=(3, 5, 5))
    expected = plain(x)
    assert expected.shape[2:] == (12, 11)
    assert distance(net(x), expected) < 1e-4


@pytest.mark.parametrize("norm", NORMS)
def test_layer_called_with_the_keyword_of_torch(norm):
    net, x = build(norm, "point").eval(), inputs()
    assert torch.equal(net[0](input=x), net[0](x))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mode", ["circular", "reflect", "zeros"])
def test_padding_modes_are_those_of_torch(norm, mode):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode), nn.BatchNorm2d(4)).eval()
    x = inputs()
    assert distance(bayesnorm.convert(plain, norm=norm, scale="point")(x), plain(x)) < 1e-5


@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_layer_of_a_network_can_be_called_alone(norm, scale, kind):
    """Statistics are a function of the parameters: a submodule computes by itself what it does in the network."""
    net, x = build(norm, scale, kind).eval(), inputs(kind)
    kept = {}
    last = layers(net)[-1]
    handle = last.register_forward_hook(lambda module, args, output: kept.update(x=args[0], y=output))
    net(x)
    handle.remove()
    assert distance(last(kept["x"]), kept["y"]) < 1e-6


class Pairs(nn.Module):
    """Two samples become one row."""

    def __init__(self):
        super().__init__()
        self.linear, self.bn = nn.Linear(6, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.linear(x.view(len(x) // 2, -1)))


class Frames(nn.Module):
    """The frames of a sample become rows of the batch."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv(x.flatten(0, 1)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", ["noise", "bayes"])
def test_batch_that_shrinks_inside_the_network_keeps_its_shape(norm, scale):
    net = bayesnorm.convert(Pairs(), norm=norm, scale=scale, input_size=(3,))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert net.eval()(x).shape == (2, 4)
    assert net.train()(x).shape == (2, 4)


@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("scale", ["noise", "bayes"])
def test_frames_of_a_sample_share_its_draws(norm, scale):
    net = bayesnorm.convert(Frames(), norm=norm, scale=scale, input_size=(5, 3, 6, 6)).train()
    x = torch.randn(2, 1, 3, 6, 6, generator=torch.Generator().manual_seed(0)).expand(-1, 5, -1, -1, -1)
    y = net(x).unflatten(0, (2, 5))
    assert all(torch.equal(y[:, 0], y[:, frame]) for frame in range(5))
    assert distance(net(x).unflatten(0, (2, 5)), y) > 1e-3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own, which it hides
@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("scale", ["noise", "bayes"])
def test_frames_of_a_sample_share_its_draws_compiled_as_eager(norm, scale):
    net = bayesnorm.convert(Frames(), norm=norm, scale=scale, input_size=(5, 3, 6, 6)).train()
    x = torch.randn(2, 5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = copy.deepcopy(net)(x)
    torch._dynamo.reset()
    assert distance(torch.compile(net, fullgraph=True, backend="eager")(x), expected) < 1e-5


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_an_ensemble_by_vmap(norm, scale):
    nets = [build(norm, scale).train() for _ in range(3)]
    for seed, net in enumerate(nets):
        net.noise_key.fill_(seed)
    x = inputs()
    expected = torch.stack([copy.deepcopy(net)(x) for net in nets])
    parameters, buffers = stack_module_state(nets)
    found = torch.vmap(lambda p, b: functional_call(nets[0], (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
