"""Numbers that samples bring along: the parts of a batch draw what the whole draws."""

import copy

import pytest
import torch
from small_data import made_up, network
from small_networks import RANDOM, converted, inputs

from bayesnorm import noise
from bayesnorm._sampling import numbered, runtimes
from bayesnorm._scope import TRAINING
from bayesnorm.layers import norm_layers


def at_zero(net):
    net.noise_step.zero_()
    return net


@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("scale", RANDOM)
@torch.no_grad()
def test_a_part_with_its_numbers_is_the_part_of_the_whole(norm, scale):
    net, x = converted("conv2d", norm, scale).train(), inputs("conv2d", 7)
    whole = at_zero(net)(x)
    for chosen in ([0, 1, 2], [3, 4, 5, 6], [5, 2], [6]):
        index = torch.tensor(chosen)
        with numbered(runtimes(net), index):
            torch.testing.assert_close(at_zero(net)(x[index]), whole[index], rtol=1e-5, atol=1e-5)
    assert (at_zero(net)(x[3:]) - whole[3:]).abs().max() > 1e-3, "without numbers a sample has that of its place"


@torch.no_grad()
def test_the_numbers_are_those_of_the_stream():
    net, x = converted("linear", "weight", "bayes"), inputs("linear", 3)
    layer = norm_layers(net)["0"]
    plain = layer(x)
    numbers = torch.tensor([11, 0, 2**40])
    rows = noise.rows(noise.derive(net.noise_key, TRAINING), torch.tensor(0), numbers)
    drawn = noise.normal(rows, noise.columns(2 * layer.index, len(layer.scale.s)))
    seen = []
    layer.register_forward_hook(lambda module, args, output: seen.append(output))
    with numbered(runtimes(net), numbers):
        at_zero(net.train())(x)
    expected = plain * (1 + layer.scale.u.exp() * drawn / layer.scale.s)
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-5)


def test_numbers_are_forgotten_also_after_an_error():
    net = network("weight", "bayes")
    (runtime,) = runtimes(net)
    outer = torch.arange(3)
    with numbered([runtime], outer):
        with pytest.raises(ZeroDivisionError), numbered([runtime], torch.arange(5)):
            raise ZeroDivisionError
        assert runtime.samples is outer
    assert runtime.samples is None


def test_numbers_do_not_travel_with_a_copy_and_are_not_in_the_state():
    net = network("weight", "bayes")
    before = set(net.state_dict())
    with numbered(runtimes(net), torch.arange(3)):
        assert set(net.state_dict()) == before
        assert runtimes(copy.deepcopy(net))[0].samples is None


@torch.no_grad()
def test_numbers_do_not_matter_in_evaluation_mode():
    net, x = network("weight", "bayes").eval(), made_up().train.images[:3]
    plain = net(x)
    with numbered(runtimes(net), torch.tensor([7, 8, 9])):
        assert torch.equal(net(x), plain)


def test_the_gradients_of_the_parts_add_up_to_that_of_the_whole():
    net, data = network("analytic", "bayes").train(), made_up()
    x = data.standardized(data.train.images[:9])

    def gradient(parts):
        net.zero_grad()
        for part in parts:
            with numbered(runtimes(net), torch.arange(9)[part]):
                at_zero(net)(x[part]).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    whole, cut = gradient([slice(0, 9)]), gradient([slice(0, 4), slice(4, 9)])
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
