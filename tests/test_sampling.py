"""Drawing the scales in evaluation mode."""

import pytest
import torch
from small_networks import MEMBERS, NORMS, RANDOM, converted, inputs
from torch import Tensor, nn

import bayesnorm
from bayesnorm import noise
from bayesnorm._scope import MONTE_CARLO
from bayesnorm.evaluate.robustness import gradient_sign
from bayesnorm.layers import norm_layers

everywhere = pytest.mark.parametrize(("network", "norm", "scale"), MEMBERS)


@everywhere
@torch.no_grad()
def test_call_i_draws_sample_i_of_predict(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale), inputs(network, 4)
    total = torch.zeros(net(x).shape, dtype=torch.float64)
    with bayesnorm.sampling(net):
        for count in range(1, 5):
            probs = net(x).double().softmax(1)
            total += probs
            mean = bayesnorm.predict(net, x, samples=count).probs.double()
            torch.testing.assert_close(mean, total / count, rtol=1e-4, atol=1e-6)
            assert (mean - probs).abs().max() > 1e-4 or count == 1


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", RANDOM)
@torch.no_grad()
def test_a_draw_is_that_of_the_stream(norm: str, scale: str) -> None:
    """The formulas of the scales in float64, from the counters: key, Monte Carlo index, layer, sample, channel."""
    net, x = converted("linear", norm, scale), inputs("linear", 6)
    layer, samples = norm_layers(net)["0"], torch.arange(6)
    s, b = layer.scale.s.double(), layer.scale.b.double()
    mean = layer(x).double()
    inside = scale in ("bayes", "bayes_per_layer")
    z = mean / s - b if inside else (mean - b) / s
    key = noise.derive(net.noise_key, MONTE_CARLO)
    with bayesnorm.sampling(net):
        for index in range(3):
            rows = noise.rows(key, torch.tensor(index), samples)
            first, second = (noise.normal(rows, noise.columns(2 * layer.index + i, len(s))).double() for i in (0, 1))
            if inside:
                expected = (z + b) * (s + layer.scale.u.double().exp() * first)
            else:
                sigmas = (layer.scale.sigma_u, layer.scale.sigma_v) if scale == "noise" else (layer.scale.u.exp(),) * 2
                sigma_u, sigma_v = (sigma.double() for sigma in sigmas)
                expected = (z + sigma_v * second) * (1 + sigma_u * first) * s + b
            torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-5)


@everywhere
@torch.no_grad()
def test_outside_nothing_is_drawn_also_after_an_exception(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale), inputs(network, 3)
    before = net(x)
    drawn = []

    def fail() -> None:
        with bayesnorm.sampling(net):
            drawn.append(net(x))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert (drawn[0] - before).abs().max() > 1e-3
    assert torch.equal(net(x), before)


@torch.no_grad()
def test_an_exception_of_the_network_restores_too() -> None:
    net, x = converted("residual", "analytic", "bayes"), inputs("residual", 3)
    before = net(x)
    with bayesnorm.sampling(net):
        draws = [net(x) for _ in range(2)]

    def fail(*_: object) -> None:
        raise RuntimeError("in the network")

    handle = net.body[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="in the network"), bayesnorm.sampling(net):
        net(x)
    handle.remove()
    assert torch.equal(net(x), before)
    with bayesnorm.sampling(net):
        assert torch.equal(net(x), draws[0])


@torch.no_grad()
def test_nested_blocks_start_anew_and_the_outer_one_goes_on() -> None:
    net, x = converted("conv2d", "analytic", "bayes"), inputs("conv2d", 3)
    with bayesnorm.sampling(net):
        draws = [net(x) for _ in range(3)]
    with bayesnorm.sampling(net):
        assert torch.equal(net(x), draws[0])
        with bayesnorm.sampling(net):
            assert torch.equal(net(x), draws[0])
            assert torch.equal(net(x), draws[1])
        bayesnorm.predict(net, x, samples=5)
        assert torch.equal(net(x), draws[1])
        with pytest.raises(ValueError, match="samples"):
            bayesnorm.predict(net, x, samples=-1)
        assert torch.equal(net(x), draws[2])


@everywhere
@torch.no_grad()
def test_held_and_shared_draws_are_those_of_one_network(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale), inputs(network, 6)
    expected = bayesnorm.predict(net, x, samples=1, shared=True).log_probs
    with bayesnorm.sampling(net, shared=True, held=True):
        whole, parts = net(x), torch.cat([net(x[:2]), net(x[2:])])
        assert torch.allclose(parts, whole, rtol=1e-5, atol=1e-6)
    assert torch.allclose(whole.log_softmax(1), expected, rtol=1e-5, atol=1e-6)
    generator = torch.Generator().manual_seed(0)
    others = []
    for _ in range(2):
        with bayesnorm.sampling(net, shared=True, held=True, generator=generator):
            others.append(net(x))
    assert not any(map(torch.allclose, (whole, *others), (*others, whole)))


@torch.no_grad()
def test_each_of_both_alone() -> None:
    net, x = converted("conv2d", "analytic", "bayes"), inputs("conv2d", 1).expand(3, -1, -1, -1)
    with bayesnorm.sampling(net):
        first = net(x)
    with bayesnorm.sampling(net, held=True):
        assert torch.equal(net(x), first)
        assert torch.equal(net(x), first)
    with bayesnorm.sampling(net, shared=True):
        one, two = net(x), net(x)
    assert torch.allclose(one, one[:1].expand_as(one), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(one, two)
    assert not torch.allclose(first[0], first[1])


@pytest.mark.parametrize("norm", NORMS)
def test_what_has_the_mean_scales_has_them_inside_too_and_takes_no_draw(norm: str) -> None:
    net, x = converted("conv2d", norm, "bayes"), inputs("conv2d", 3)
    targets = torch.zeros(3, dtype=torch.int64)

    def means() -> list[Tensor]:
        single = bayesnorm.predict(net, x, samples=0).probs
        moments = bayesnorm.predict(net, x, method="moments").probs
        return [single, moments, gradient_sign(net, x, targets)]

    outside = means()
    with bayesnorm.sampling(net), torch.no_grad():
        draws = [net(x) for _ in range(2)]
    with bayesnorm.sampling(net), torch.no_grad():
        assert torch.equal(net(x), draws[0])
        assert all(map(torch.equal, means(), outside))
        assert torch.equal(net(x), draws[1])


@torch.no_grad()
def test_a_generator_gives_another_key() -> None:
    net, x = converted("linear", "weight", "bayes"), inputs("linear", 3)

    def draw(seed: int | None) -> Tensor:
        with bayesnorm.sampling(net, generator=None if seed is None else torch.Generator().manual_seed(seed)):
            return net(x)

    assert torch.equal(draw(1), draw(1))
    assert torch.equal(draw(None), draw(None))
    assert not torch.equal(draw(1), draw(2))
    assert not torch.equal(draw(1), draw(None))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", RANDOM)
@torch.no_grad()
def test_noise_of_training_is_not_touched(norm: str, scale: str) -> None:
    x = inputs("conv2d", 4)
    undisturbed = converted("conv2d", norm, scale).train()
    expected = [undisturbed(x) for _ in range(3)]
    net = converted("conv2d", norm, scale).train()
    outputs = [net(x)]
    with bayesnorm.sampling(net.eval()):
        net(x)
    bayesnorm.predict(net, x, samples=2)
    outputs.append(net.train()(x))
    net.eval()(x)
    outputs.append(net.train()(x))
    assert net.noise_step == 3
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


@torch.no_grad()
def test_gradients_flow_through_draws_and_point_scales_do_not_draw() -> None:
    net, x = converted("conv2d", "analytic", "bayes"), inputs("conv2d", 4)
    with torch.enable_grad(), bayesnorm.sampling(net):
        net(x).square().sum().backward()
    assert all(layer.scale.u.grad.abs().sum() > 0 for layer in norm_layers(net).values())
    point = converted("conv2d", "analytic", "point")
    expected = point(x)
    with bayesnorm.sampling(point):
        assert torch.equal(point(x), expected)


@torch.no_grad()
def test_every_converted_network_inside_draws() -> None:
    first, second = (converted("conv2d", "weight", "bayes", seed=seed) for seed in (0, 1))
    net, x = nn.Sequential(nn.ModuleList([first, second])), inputs("conv2d", 3)
    means = first(x), second(x)
    with bayesnorm.sampling(net):
        assert not torch.equal(first(x), means[0])
        assert not torch.equal(second(x), means[1])
    assert torch.equal(first(x), means[0])
    assert torch.equal(second(x), means[1])
