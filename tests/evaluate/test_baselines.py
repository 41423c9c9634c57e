"""Batch statistics, noise, dropout and ensembles: closed forms, laws of the draws, and a network left as it was."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from small_data import classifier, made_up, network, state
from torch import Tensor, nn

import bayesnorm
from bayesnorm import bn_noise
from bayesnorm._modes import mode
from bayesnorm.data.passes import images_of
from bayesnorm.evaluate import nll
from bayesnorm.evaluate._bn_draws import noise_draws
from bayesnorm.evaluate.baselines import (
    deep_ensemble,
    mc_batch_norm,
    mc_dropout,
    stochastic_batch_norm,
    training_batches,
)


def with_batch_norm(pixels: bool = False) -> nn.Module:
    """torch's batch norms with running statistics and affine parameters that are not the initial ones."""
    torch.manual_seed(2)
    layers: list[nn.Module] = [nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.3)]
    layers += [nn.Conv2d(5, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    head = [nn.Conv2d(6, 3, 1)] if pixels else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)]
    net = nn.Sequential(*layers, *head)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 2)
                module.bias.normal_()
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return net


def converted(scale: str = "bayes", pixels: bool = False) -> nn.Module:
    return bayesnorm.convert(with_batch_norm(pixels), norm="batch", scale=scale)


NETWORKS: dict[str, Callable[..., nn.Module]] = {"torch": with_batch_norm, "converted": converted}
each_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


def inputs(count: int = 9, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) + 0.5


def by_the_batch(net: nn.Module, x: Tensor) -> Tensor:
    """Log-probabilities where batch norm normalizes by ``x`` itself and nothing else is in training mode."""
    with mode(net, False), bn_noise._batch_mode(bn_noise._batch_norms(net)), torch.no_grad():
        return net(x).log_softmax(1)


def evaluated(net: nn.Module, x: Tensor) -> Tensor:
    with mode(net, False), torch.no_grad():
        return net(x).log_softmax(1)


@each_network
@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_the_data_as_its_one_batch_is_batch_norm_with_these_statistics(make, pixels: bool) -> None:
    net, x = make(pixels=pixels), inputs()
    expected = by_the_batch(net, x)
    torch.testing.assert_close(mc_batch_norm(net, x, [x], samples=1), expected, rtol=1e-4, atol=1e-5)
    assert float((expected - evaluated(net, x)).abs().max()) > 0.1  # running statistics would not do


@each_network
def test_probabilities_are_averaged_over_the_batches(make) -> None:
    net, x = make(), inputs()
    batches = [inputs(16, seed) for seed in (1, 2, 3, 4)]
    single = torch.stack([mc_batch_norm(net, x, [batch], samples=1) for batch in batches[:3]])
    found = mc_batch_norm(net, x, batches, samples=3)
    torch.testing.assert_close(found.exp(), single.exp().mean(0))
    torch.testing.assert_close(found.exp().sum(1), torch.ones(9))
    assert float((single[0] - single[1]).abs().max()) > 1e-3


def test_converted_layers_normalize_as_those_they_replace() -> None:
    x, batches = inputs(), [inputs(16, seed) for seed in (1, 2)]
    expected = mc_batch_norm(with_batch_norm(), x, batches, 2)
    torch.testing.assert_close(mc_batch_norm(converted("point"), x, batches, 2), expected, rtol=1e-4, atol=1e-5)


def test_batch_statistics_do_not_contain_the_input() -> None:
    net, x = with_batch_norm(), inputs()
    batches = [inputs(16, 1)]
    torch.testing.assert_close(mc_batch_norm(net, x[:1], batches, 1), mc_batch_norm(net, x, batches, 1)[:1])


def test_batch_norm_without_running_statistics() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(144, 3)
    )
    x = inputs()
    torch.testing.assert_close(mc_batch_norm(net, x, [x], 1), evaluated(net, x), rtol=1e-4, atol=1e-5)
    assert net[1].running_mean is net[1].running_var is None
    with pytest.raises(ValueError, match="'1' has no running statistics"):
        stochastic_batch_norm(net, x, 16)


def test_a_layer_that_is_used_twice_has_the_statistics_of_both_uses() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2, eps=1e-12)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x[:, :2]) + self.norm(x[:, 2:])

    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + 1
    both = torch.cat([x[:, :2], x[:, 2:]])
    normalized = (both - both.mean(0)) / both.std(0, correction=0)
    expected = (normalized[:50] + normalized[50:]).log_softmax(1)
    torch.testing.assert_close(mc_batch_norm(Twice(), x, [x], 1), expected, rtol=1e-4, atol=1e-5)


def zero_noise(net: nn.Module) -> dict[str, bn_noise.Measured]:
    measured = bn_noise.measure(net, [inputs(8, 1), inputs(8, 2)])
    return {
        name: bn_noise.Measured(torch.ones_like(found.u), torch.zeros_like(found.v), found.n)
        for name, found in measured.items()
    }


@each_network
@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_stochastic_batch_norm_without_noise_is_evaluation(make, pixels: bool) -> None:
    net, x = make(pixels=pixels), inputs()
    found = stochastic_batch_norm(net, x, zero_noise(net), samples=3)
    torch.testing.assert_close(found, evaluated(net, x), rtol=1e-6, atol=1e-6)


def test_the_chi_model_counts_batch_and_positions() -> None:
    """8 x 8 positions, batch 4: n = 256 in both layers, which a measurement with that n and these draws must equal."""
    net, x = with_batch_norm(), inputs()
    given = {}
    for layer, (name, channels) in enumerate((("1", 5), ("5", 6))):
        u, v = noise_draws(256, layer, channels, 1, seed=7)
        given[name] = bn_noise.Measured(u, v, 256)
    expected = stochastic_batch_norm(net, x, given, samples=1)
    torch.testing.assert_close(stochastic_batch_norm(net, x, 4, samples=1, seed=7), expected)
    assert float((stochastic_batch_norm(net, x, 8, samples=1, seed=7) - expected).abs().max()) > 1e-4


def test_layers_of_a_converted_network_take_what_was_measured_before() -> None:
    net, x = with_batch_norm(), inputs()
    measured = bn_noise.measure(net, [inputs(8, seed) for seed in range(4)])
    torch.testing.assert_close(
        stochastic_batch_norm(converted("point"), x, measured, 5),
        stochastic_batch_norm(net, x, measured, 5),
        rtol=1e-4,
        atol=1e-5,
    )


def test_dropout_is_active_and_nothing_else() -> None:
    """Of a network that is dropout and a sum: the logit of a draw is 2 x (number of kept inputs), kept with p = 1/2."""

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            return torch.stack([x.sum(1), torch.zeros(len(x))], 1)

    net = nn.Sequential(nn.Dropout(0.5, inplace=True), Sum())
    x, draws, kept = torch.ones(200, 3), 40, torch.arange(4.0)
    weights = torch.tensor([1, 3, 3, 1]) / 8
    values = torch.sigmoid(2 * kept)
    mean = float((weights * values).sum())
    std = math.sqrt(float((weights * (values - mean) ** 2).sum()))
    found = mc_dropout(net, x, draws).exp()[:, 0]
    assert abs(float(found.mean()) - mean) < 5 * std / math.sqrt(200 * draws)
    chi_square = float(((found - mean) ** 2).sum()) * draws / std**2
    assert abs(chi_square - 200) < 5 * math.sqrt(2 * 200)  # draws of different inputs are independent
    assert torch.equal(x, torch.ones(200, 3))


def test_dropout_of_nothing_is_evaluation() -> None:
    net, x = with_batch_norm(), inputs()
    net[3].p = 0.0
    torch.testing.assert_close(mc_dropout(net, x, 4), evaluated(net, x), rtol=1e-5, atol=1e-6)


def test_dropout_leaves_the_generator_alone() -> None:
    net, x = with_batch_norm(), inputs()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = mc_dropout(net, x, 4, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(mc_dropout(net, x, 4, seed=1), first)
    assert not torch.equal(mc_dropout(net, x, 4, seed=2), first)


def test_an_ensemble_of_one_is_that_one() -> None:
    net, x = network("weight", "bayes"), inputs()
    for samples in (0, 7):
        expected = bayesnorm.predict(net, x, samples=samples).log_probs
        torch.testing.assert_close(deep_ensemble([net], x, samples), expected, rtol=1e-5, atol=1e-6)


def test_draws_belong_to_an_input_not_to_its_piece() -> None:
    net, x = network("weight", "bayes"), inputs()
    whole = deep_ensemble([net], x, 3)
    torch.testing.assert_close(deep_ensemble([net], x, 3, max_rows=4), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(deep_ensemble([net], [x[:2], x[2:]], 3), whole, rtol=1e-5, atol=1e-6)
    same = deep_ensemble([net], x[:1].expand(9, -1, -1, -1), 3)
    assert float((same[0] - same[1]).abs().max()) > 1e-4
    dropping = with_batch_norm()
    repeated = mc_dropout(dropping, x[:1].expand(4, -1, -1, -1), 3, max_rows=2)
    assert float((repeated[:2] - repeated[2:]).abs().max()) > 1e-4


def test_an_ensemble_is_at_least_as_likely_as_its_members_are_on_average() -> None:
    """Jensen: -log of a mean is at most the mean of -log, for each input, so for their mean as well."""
    data = made_up()
    nets = [network("weight", "point", seed=seed) for seed in range(4)]
    x, targets = data.standardized(data.test.images), data.test.targets
    members = torch.stack([deep_ensemble([net], x) for net in nets])
    found = deep_ensemble(nets, x)
    torch.testing.assert_close(found.exp(), members.exp().mean(0))
    alone = [nll(member, targets) for member in members]
    assert nll(found, targets) < sum(alone) / 4 - 1e-4
    assert torch.equal(deep_ensemble([nets[0]] * 1, x), members[0])


def all_ways(net: nn.Module, x: object, **options: int) -> Iterator[Tensor]:
    yield mc_batch_norm(net, x, [inputs(8, 1), inputs(8, 2)], samples=2, **options)
    yield stochastic_batch_norm(net, x, 16, samples=2, **options)
    yield deep_ensemble([net, net], x, **options)


@each_network
@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_pieces_give_what_the_whole_gives(make, pixels: bool) -> None:
    data, net = made_up(pixels=pixels), make(pixels=pixels)
    x = data.standardized(data.test.images)
    whole = list(all_ways(net, x))
    assert [tuple(found.shape) for found in whole] == [(12, 3, 8, 8) if pixels else (12, 3)] * 3
    cut = list(all_ways(net, x, max_rows=5))
    streams = [
        mc_batch_norm(net, (images for images, _ in images_of(data, "test")), [inputs(8, 1), inputs(8, 2)], 2),
        stochastic_batch_norm(net, iter([x[:7], x[7:]]), 16, 2),
        deep_ensemble([net, net], iter([x[:7], x[7:]])),
    ]
    for expected, found, streamed in zip(whole, cut, streams, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(streamed, expected, rtol=1e-4, atol=1e-5)
    assert mc_dropout(with_batch_norm(pixels), iter([x[:7], x[7:]]), 2).shape == whole[0].shape


@each_network
def test_equal_seeds_give_equal_bits(make) -> None:
    net, x = make(), inputs()
    for first, second in zip(all_ways(net, x), all_ways(net, x), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(stochastic_batch_norm(net, x, 8, 2, seed=1), stochastic_batch_norm(net, x, 8, 2, seed=2))


class Refuses(nn.Module):
    """Passes on so many batches, then fails."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("no more")
        return x


def failing_batches() -> Iterator[Tensor]:
    yield inputs(8, 1)
    raise RuntimeError("no more")


WAYS: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], int]] = {
    "mc batch norm": (lambda net, x: mc_batch_norm(net, x, [inputs(8, 1)] * 2, 2, max_rows=4), 2 + 3 * 2),
    "stochastic batch norm": (lambda net, x: stochastic_batch_norm(net, x, 16, 2, max_rows=4), 1 + 3 * 2),
    "mc dropout": (lambda net, x: mc_dropout(net, x, 2, max_rows=4), 3 * 2),
    "deep ensemble": (lambda net, x: deep_ensemble([net], x, max_rows=4), 3),
}
"""Each with the number of forward passes that it makes of nine inputs."""


@each_network
@pytest.mark.parametrize(("way", "passes"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("fails", [None, 0, 1, -2, -1])
def test_the_network_is_left_as_it_was(make, way, passes: int, fails: int | None) -> None:
    net = make().train()
    net.append(Refuses(passes if fails is None else range(passes)[fails]))
    net[2].eval()
    before, modes, hooks = state(net), [module.training for module in net.modules()], hooks_of(net)
    buffers, random = [id(buffer) for buffer in net.buffers()], torch.get_rng_state()
    if fails is None:
        result = way(net, inputs())
        assert bool(result.isfinite().all())
        assert not result.requires_grad
    else:
        with pytest.raises(RuntimeError, match="no more"):
            way(net, inputs())
    assert [id(buffer) for buffer in net.buffers()] == buffers
    assert list(net.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert hooks_of(net) == hooks
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def hooks_of(net: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())


def test_batches_that_fail_leave_the_network_as_it_was() -> None:
    net = with_batch_norm()
    before = state(net)
    with pytest.raises(RuntimeError, match="no more"):
        mc_batch_norm(net, inputs(), failing_batches(), 3)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())


def test_training_batches_are_random_whole_and_repeatable() -> None:
    data = made_up(train=20)
    first = list(itertools.islice(training_batches(data, 8, seed=1), 4))
    again = list(itertools.islice(training_batches(data, 8, seed=1), 4))
    assert all(batch.shape == (8, 1, 8, 8) for batch in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], next(training_batches(data, 8, seed=2)))
    assert not torch.equal(first[0], first[2])
    images = data.standardized(data.train.images)
    epoch = torch.cat(first[:2])
    same = (epoch[:, None] == images).flatten(2).all(2)
    assert bool((same.sum(1) == 1).all())  # each is a training image,
    assert int(same.sum(0).max()) == 1  # and none comes twice in an epoch


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net, x: mc_batch_norm(classifier(), x, [x]), "Sequential has no batch normalization"),
        (lambda net, x: stochastic_batch_norm(classifier(), x, 8), "Sequential has no batch normalization"),
        (lambda net, x: mc_dropout(classifier(), x), "Sequential has no dropout layer"),
        (lambda net, x: deep_ensemble([], x), "there are no networks"),
        (lambda net, x: mc_batch_norm(net, x, [x], 0), "samples=0"),
        (lambda net, x: stochastic_batch_norm(net, x, 8, 0), "samples=0"),
        (lambda net, x: mc_dropout(net, x, 0), "samples=0"),
        (lambda net, x: mc_batch_norm(net, x, [x, x], 3), "2 batches for samples=3"),
        (lambda net, x: mc_dropout(net, x, max_rows=0), "max_rows=0"),
        (lambda net, x: mc_dropout(net, x[:0]), "x holds no input"),
        (lambda net, x: stochastic_batch_norm(net, [], 8), "x holds no input"),
        (lambda net, x: stochastic_batch_norm(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)), x, 3), "'1' has n=3"),
        (lambda net, x: stochastic_batch_norm(net, x, {}), "nothing was measured for '1'"),
        (
            lambda net, x: stochastic_batch_norm(net, x, dict.fromkeys("15", bn_noise.Measured(x[0, 0], x[0, 0], 8))),
            "'1' has 5 channels, but 8 were measured",
        ),
        (
            lambda net, x: deep_ensemble([net, nn.Sequential(nn.Flatten(), nn.Linear(64, 4))], x),
            r"output 1 has shape \(9, 4\), those before it \(9, 3\)",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call(with_batch_norm(), inputs())
    assert "\n" not in str(caught.value)
