"""The predictive distribution: what is averaged, how the work is cut, and what is left as it was."""

import math

import pytest
import torch
from small_networks import MEMBERS, NETWORKS, NORMS, RANDOM, converted, inputs
from torch import Tensor, nn

import bayesnorm
from bayesnorm import _predict
from bayesnorm.layers import norm_layers

ROUNDING = {"rtol": 2e-5, "atol": 2e-6}
everywhere = pytest.mark.parametrize(("network", "norm", "scale"), MEMBERS)
each_norm = pytest.mark.parametrize("norm", NORMS)
each_random_scale = pytest.mark.parametrize("scale", RANDOM)


@torch.no_grad()
def passes(net: nn.Module, x: Tensor, samples: int) -> Tensor:
    """Log-probabilities ``(samples, N, ...)`` in float64 of sampled passes, one by one."""
    with bayesnorm.sampling(net):
        return torch.stack([net(x) for _ in range(samples)]).double().log_softmax(2)


@pytest.mark.parametrize(
    ("network", "norm", "scale"),
    [*MEMBERS, *[(network, norm, "point") for network in ("linear", "residual") for norm in NORMS]],
)
def test_without_samples_it_is_the_evaluation_pass(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale), inputs(network, 5)
    expected = net(x).detach().log_softmax(1)
    for samples in (0, 3) if scale == "point" else (0,):
        out = bayesnorm.predict(net.train(), x, samples=samples, max_rows=3)
        torch.testing.assert_close(out.log_probs, expected, **ROUNDING)
        torch.testing.assert_close(out.entropy, -(expected.exp() * expected).sum(1), **ROUNDING)
        assert out.mutual_info.abs().max() == 0


@everywhere
def test_mean_of_probabilities_entropy_and_mutual_information_of_explicit_passes(
    network: str, norm: str, scale: str
) -> None:
    net, x = converted(network, norm, scale), inputs(network, 5)
    logs = passes(net, x, 6)
    probs = logs.exp().mean(0)
    entropy = -(probs * probs.log()).sum(1)
    mutual = entropy + (logs.exp() * logs).sum(2).mean(0)
    out = bayesnorm.predict(net, x, samples=6)
    for found, expected in ((out.probs, probs), (out.log_probs, probs.log()), (out.entropy, entropy)):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.mutual_info.double(), mutual, rtol=1e-3, atol=1e-5)
    assert out.mutual_info.min() >= 0
    assert out.mutual_info.max() > 1e-3
    assert out.probs.shape == net(x).shape
    assert out.entropy.shape == (5, *net(x).shape[2:])


@everywhere
def test_draws_do_not_depend_on_how_the_work_is_cut(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale), inputs(network, 5)
    for samples, shared in ((1, False), (4, False), (3, True)):
        whole = bayesnorm.predict(net, x, samples=samples, shared=shared)
        for rows in (1, 3, 7):
            part = bayesnorm.predict(net, x, samples=samples, shared=shared, max_rows=rows)
            torch.testing.assert_close(part.log_probs, whole.log_probs, **ROUNDING)
            torch.testing.assert_close(part.mutual_info, whole.mutual_info, **ROUNDING)


@each_random_scale
def test_a_draw_belongs_to_the_position_of_the_input(scale: str) -> None:
    net, x = converted("conv2d", "analytic", scale), inputs("conv2d", 6)
    whole = bayesnorm.predict(net, x, samples=3).probs
    torch.testing.assert_close(bayesnorm.predict(net, x[:4], samples=3).probs, whole[:4], **ROUNDING)
    moved = bayesnorm.predict(net, x[2:], samples=3).probs
    assert (moved - whole[2:]).abs().amax(1).min() > 1e-4
    swapped = bayesnorm.predict(net, torch.cat([x[2:4], x[2:]]), samples=3).probs
    torch.testing.assert_close(swapped[:2], moved[:2], **ROUNDING)
    torch.testing.assert_close(swapped[2:], whole[2:], **ROUNDING)


@everywhere
def test_shared_draws_are_the_same_for_all_inputs(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale), inputs(network, 4)
    x[3] = x[1]
    shared = bayesnorm.predict(net, x, samples=2, shared=True)
    apart = bayesnorm.predict(net, x, samples=2)
    torch.testing.assert_close(shared.log_probs[1], shared.log_probs[3], **ROUNDING)
    assert (apart.log_probs[1] - apart.log_probs[3]).abs().max() > 1e-4
    torch.testing.assert_close(shared.log_probs[0], apart.log_probs[0], **ROUNDING)
    several = bayesnorm.predict(net, x, samples=5, shared=True)
    assert several.mutual_info.max() > 1e-3


def test_a_generator_supplies_the_key_and_nothing_else() -> None:
    net, x = converted("conv2d", "analytic", "bayes"), inputs("conv2d", 3)
    state = torch.get_rng_state()

    def probs(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return bayesnorm.predict(net, x, samples=3, generator=generator).probs

    assert torch.equal(probs(1), probs(1))
    assert torch.equal(probs(None), probs(None))
    for one, other in ((probs(1), probs(2)), (probs(1), probs(None))):
        assert (one - other).abs().max() > 1e-4
    generator = torch.Generator().manual_seed(1)
    first, second = (bayesnorm.predict(net, x, samples=3, generator=generator).probs for _ in range(2))
    assert torch.equal(first, probs(1))
    assert not torch.equal(second, first)
    assert torch.equal(torch.get_rng_state(), state)


def test_log_probabilities_are_averaged_as_they_are() -> None:
    net, x = converted("segmentation", "weight", "bayes"), inputs("segmentation", 3)
    with_softmax = nn.Sequential(net, nn.LogSoftmax(1))
    logits = bayesnorm.predict(net, x, samples=3)
    for output in ("logits", "log_probs"):
        logs = bayesnorm.predict(with_softmax, x, samples=3, output=output)  # type: ignore[arg-type]
        torch.testing.assert_close(logs.log_probs, logits.log_probs, **ROUNDING)
        torch.testing.assert_close(logs.mutual_info, logits.mutual_info, **ROUNDING)


def test_half_precision_outputs_are_averaged_in_float32() -> None:
    net, x = converted("linear", "weight", "bayes").bfloat16(), inputs("linear", 3).bfloat16()
    out = bayesnorm.predict(net, x, samples=2)
    assert {t.dtype for t in vars(out).values()} == {torch.float32}
    torch.testing.assert_close(out.probs.sum(1), torch.ones(3))


@each_norm
@each_random_scale
def test_network_is_left_as_it_was(norm: str, scale: str) -> None:
    net, x = converted("conv2d", norm, scale).train(), inputs("conv2d", 4)
    net[1].eval()
    norm_layers(net)["2"].norm.eval()
    flags = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    out = bayesnorm.predict(net, x, samples=2)
    assert not out.probs.requires_grad
    assert [module.training for module in net.modules()] == flags
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    batchwise = bayesnorm.predict(net, torch.cat([x[:1], 5 * x[1:]]), samples=2).probs[0]
    torch.testing.assert_close(batchwise, out.probs[0], **ROUNDING)


@pytest.mark.parametrize("samples", [0, 4])
def test_network_is_left_as_it_was_when_it_raises(samples: int) -> None:
    net, x = converted("residual", "analytic", "bayes").train(), inputs("residual", 4)
    expected = bayesnorm.predict(net, x, samples=samples).probs
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no memory")

    handle = net.body.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        bayesnorm.predict(net, x, samples=samples, max_rows=2)
    handle.remove()
    assert all(module.training for module in net.modules())
    assert net.noise_step == 0
    torch.testing.assert_close(bayesnorm.predict(net, x, samples=samples).probs, expected, **ROUNDING)
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize("excluded", [None, "0"])
@pytest.mark.parametrize("max_rows", [None, 60, 7])
def test_what_stands_before_the_first_random_scale_is_computed_once(excluded: str | None, max_rows: int | None) -> None:
    build, size = NETWORKS["conv2d"]
    torch.manual_seed(0)
    net = bayesnorm.convert(build(), norm="weight", scale="bayes", preserve=False, exclude=excluded, input_size=size)
    rows = {"0": 0, "2": 0, "4": 0}
    for name in rows:

        def count(_: nn.Module, args: tuple[Tensor], name: str = name) -> None:
            rows[name] += len(args[0])

        net.get_submodule(name).register_forward_pre_hook(count)
    bayesnorm.predict(net, inputs("conv2d", 20), samples=6, max_rows=max_rows)
    assert rows == {"0": 20, "2": 20 if excluded else 120, "4": 120}


def test_a_failed_call_does_not_change_how_later_ones_work() -> None:
    net, x = converted("conv2d", "weight", "bayes"), inputs("conv2d", 3)
    with pytest.raises(RuntimeError):
        bayesnorm.predict(net, x[:, :2], samples=4)
    seen = []
    net[0].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    bayesnorm.predict(net, x, samples=4)
    assert seen == [3]


@pytest.mark.parametrize("network", ["conv2d", "residual"])
def test_batches_fit_the_budget_for_every_image_size(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = converted(network, "weight", "bayes")
    x = torch.randn(9, 3, 16, 16)
    expected = bayesnorm.predict(net, x, samples=8).probs
    numbers: list[int] = []
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ReLU)):
            module.register_forward_hook(lambda _, args, out: numbers.append(args[0].numel() + out.numel()))
    monkeypatch.setattr(_predict, "BUDGET", 200_000)
    found = bayesnorm.predict(net, x, samples=8).probs
    torch.testing.assert_close(found, expected, **ROUNDING)
    assert max(numbers) * 4 <= 2 * 200_000  # the estimate counts the steps of the traced size, borders included
    assert max(numbers) * 4 >= 0.3 * 200_000


def test_a_skip_around_the_first_random_scale_repeats_the_input() -> None:
    net, x = converted("residual", "weight", "bayes"), inputs("residual", 3)
    seen = []
    net.first.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    out = bayesnorm.predict(net, x, samples=4)
    assert seen == [12]
    torch.testing.assert_close(out.probs.double(), passes(net, x, 4).exp().mean(0), rtol=1e-4, atol=1e-6)


@each_norm
def test_a_network_that_reads_the_batch_size_from_its_input(norm: str) -> None:
    net, x = converted("reads_batch_size", norm, "bayes"), inputs("reads_batch_size", 3)
    expected = passes(net, x, 4).exp().mean(0)
    for rows in (None, 1, 5):
        out = bayesnorm.predict(net, x, samples=4, max_rows=rows)
        torch.testing.assert_close(out.probs.double(), expected, rtol=1e-4, atol=1e-6)


class _Ensemble(nn.Module):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return sum(member(x) for member in self.members)


@each_norm
def test_several_converted_networks_in_one_module(norm: str) -> None:
    first, second = (converted("conv2d", norm, "bayes", seed=seed) for seed in (0, 1))
    plain = NETWORKS["conv2d"][0]()
    net, x = _Ensemble(first, second, plain).eval(), inputs("conv2d", 5)
    with torch.no_grad(), bayesnorm.sampling(first), bayesnorm.sampling(second):
        draws = torch.stack([first(x) + second(x) + plain(x) for _ in range(3)])
    expected = draws.softmax(2).mean(0)
    for rows in (None, 4):
        torch.testing.assert_close(bayesnorm.predict(net, x, samples=3, max_rows=rows).probs, expected, **ROUNDING)


def test_network_without_random_scales_needs_no_conversion() -> None:
    net, x = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), inputs("linear", 4)
    out = bayesnorm.predict(net, x, samples=7)
    torch.testing.assert_close(out.probs, net.eval()(x).softmax(1).detach(), **ROUNDING)
    assert out.mutual_info.abs().max() == 0


def _clamped_exponential(t: Tensor) -> Tensor:
    """``E[exp(t xi)]`` for a standard normal xi clamped to +-3."""

    def cdf(x: Tensor) -> Tensor:
        return torch.special.ndtr(x)

    tail = cdf(torch.tensor(-3.0, dtype=torch.float64))
    return (t**2 / 2).exp() * (cdf(3 - t) - cdf(-3 - t)) + tail * 2 * torch.cosh(3 * t)


@pytest.mark.parametrize(("factor", "passes_"), [(1.0, True), (1.1, False)], ids=["exact", "ten_percent_off"])
def test_monte_carlo_mean_converges_to_the_analytic_value(factor: float, passes_: bool) -> None:
    torch.manual_seed(3)
    net = bayesnorm.convert(nn.Sequential(nn.Linear(5, 3)), norm="weight", scale="bayes", preserve=False)
    layer, count, samples = norm_layers(net)["0"], 128, 500
    with torch.no_grad():
        layer.scale.b.copy_(torch.tensor([0.2, -0.4, 0.0]))
        layer.scale.u.copy_(torch.tensor([-0.2, -0.3, 0.1]))
    x = torch.randn(1, 5).expand(count, 5) * 2
    inner = (x[0] @ layer.weight.T / layer.weight.norm(dim=1) + layer.scale.b).double().detach()
    sigma = torch.where(layer.scale.u < 0, layer.scale.u.exp(), 1 + layer.scale.u).double().detach() * factor
    t, mean = sigma * inner.abs(), (inner * layer.scale.s.double().detach()).exp()
    expected = mean * _clamped_exponential(t)
    std = mean * (_clamped_exponential(2 * t) - _clamped_exponential(t) ** 2).sqrt()
    # The network returns logarithms, taken as log-probabilities: their mean exponential has a closed form.
    found = bayesnorm.predict(net, x, samples=samples, output="log_probs").probs.double().mean(0)
    inside = (found - expected).abs() < 5 * std / math.sqrt(count * samples)
    assert bool(inside.all()) is passes_


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": -1}, "samples=-1"),
        ({"output": "probs"}, "output='probs'"),
        ({"max_rows": 0}, "max_rows=0"),
        ({"x": torch.empty(0, 5)}, "holds no input"),
    ],
)
def test_errors_name_the_value(arguments: dict[str, object], message: str) -> None:
    net = converted("linear", "weight", "bayes")
    with pytest.raises(ValueError, match=message):
        bayesnorm.predict(net, **{"x": inputs("linear", 2), **arguments})  # type: ignore[arg-type]


def linear(sigma: float = 0.3) -> nn.Module:
    """One layer: its outputs are linear in the draws."""
    torch.manual_seed(0)
    net = bayesnorm.convert(nn.Sequential(nn.Linear(6, 4)), norm="weight", scale="bayes", preserve=False)
    with torch.no_grad():
        net[0].scale.u.fill_(math.log(sigma))
    return net.eval()


@pytest.mark.parametrize("samples", [0, 4])
@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (nn.Linear(8, 1), r"returned a tensor \(\d+, 1\), classes belong on axis 1"),
        (nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)), r"returned a tensor \(\d+,\), classes belong on axis 1"),
        (nn.Sequential(nn.Linear(8, 3), nn.Unflatten(0, (-1, 2)), nn.Flatten(1)), r"rows for \d+ inputs: wrap it"),
    ],
    ids=["one logit", "no class axis", "rows that were joined"],
)
def test_outputs_that_are_no_classes_of_each_input_are_refused(tail: nn.Module, message: str, samples: int) -> None:
    net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), tail), norm="weight", scale="bayes")
    with pytest.raises(ValueError, match=message):
        bayesnorm.predict(net, torch.randn(6, 4), samples=samples)


def test_antithetic_draws_come_in_pairs_around_the_mean():
    net, x = linear(), torch.randn(5, 6)
    with torch.no_grad(), _predict.drawing(_predict.runtimes(net), None, antithetic=True):
        first, second, third, fourth = (net(x) for _ in range(4))
    torch.testing.assert_close((first + second) / 2, net(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close((third + fourth) / 2, net(x), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(first, third)


@everywhere
def test_antithetic_draws_do_not_depend_on_how_the_work_is_cut(network, norm, scale):
    net, x = converted(network, norm, scale).eval(), inputs(network, 5)
    whole = bayesnorm.predict(net, x, 6, antithetic=True).probs
    pieces = bayesnorm.predict(net, x, 6, antithetic=True, max_rows=4).probs
    torch.testing.assert_close(pieces, whole, **ROUNDING)
    plain = bayesnorm.predict(net, x, 3).probs
    if scale in RANDOM:
        with torch.no_grad(), _predict.drawing(_predict.runtimes(net), None, antithetic=True):
            draws = [net(x).double().softmax(1) for _ in range(6)]
        torch.testing.assert_close(torch.stack(draws).mean(0).float(), whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.stack(draws[::2]).mean(0).float(), plain, rtol=1e-4, atol=1e-5)


def test_antithetic_draws_err_less():
    """Root mean square error of the probabilities over 40 keys against 4000 draws; expected is about a half."""
    net, x = linear(), torch.randn(20, 6)
    reference = bayesnorm.predict(net, x, 4000).probs
    errors = {}
    for antithetic in (False, True):
        found = [
            bayesnorm.predict(net, x, 10, generator=torch.Generator().manual_seed(key), antithetic=antithetic).probs
            for key in range(40)
        ]
        errors[antithetic] = (torch.stack(found) - reference).square().mean().sqrt().item()
    assert errors[True] < 0.6 * errors[False]
