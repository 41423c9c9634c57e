"""Scales of many layers end to end, against each on its own."""

import pytest
import torch

import bayesnorm
from bayesnorm.scales import BayesScale, NoiseScale, PointScale, together
from bayesnorm.scales.bayes import U_MAX, U_MIN

SPECS = {
    "plain": bayesnorm.Bayes(),
    "log-uniform": bayesnorm.Bayes(prior="log-uniform"),
    "per layer": bayesnorm.Bayes(per_layer_variance=True),
    "stochastic bias": bayesnorm.Bayes(stochastic_bias=True),
}


def scales(*specs: bayesnorm.Bayes) -> list[BayesScale]:
    torch.manual_seed(0)
    made = [BayesScale(3 + i, spec, dtype=torch.float64) for i, spec in enumerate(specs)]
    for scale in made:
        with torch.no_grad():
            for value in (*scale.parameters(), scale.offset):
                value.copy_(torch.randn_like(value))
            scale.s.abs_()
    return made


@pytest.mark.parametrize("first", SPECS)
@pytest.mark.parametrize("second", SPECS)
def test_kl_of_all_is_the_sum_of_those_of_each_and_so_is_its_gradient(first, second):
    made = scales(SPECS[first], SPECS[second], SPECS[first])
    parameters = [p for scale in made for p in scale.parameters()]
    joined, single = sum(together.kl(made)), sum(scale.kl() for scale in made)
    torch.testing.assert_close(joined, single)
    got, expected = (torch.autograd.grad(value, parameters, allow_unused=True) for value in (joined, single))
    torch.testing.assert_close(got, expected)


def test_without_a_posterior_there_is_no_kl():
    assert together.kl([PointScale(3), NoiseScale(2, bayesnorm.Noise())]) == []
    assert together.kl([]) == []


@pytest.mark.parametrize("name", ["plain", "per layer", "log-uniform"])
def test_factors_are_those_of_each_scale(name):
    made = scales(*[SPECS[name]] * 3)
    assert together.alike(made) == [[0, 1, 2]]
    draws = torch.randn(4, 12).double()
    parts = draws.split([3, 4, 5], 1)
    got = together.factors(made, draws)
    expected = [scale.outer(part)[0] for scale, part in zip(made, parts, strict=True)]
    torch.testing.assert_close(list(got), expected)
    parameters = [p for scale in made for p in (scale.s, scale.u)]
    gradients = [torch.autograd.grad(sum(f.sin().sum() for f in found), parameters) for found in (got, expected)]
    torch.testing.assert_close(*gradients)


def test_only_scales_of_one_kind_are_laid_end_to_end():
    made = [*scales(SPECS["plain"], SPECS["per layer"], SPECS["stochastic bias"], SPECS["plain"]), PointScale(2)]
    assert together.alike(made) == [[0, 3], [1]]
    assert together.alike([made[0], made[3].float()]) == [[0], [1]]


@pytest.mark.parametrize("name", SPECS)
def test_output_moments_are_those_of_each_scale(name):
    made = [*scales(SPECS[name], SPECS["plain"]), *([PointScale(2).double()] if name == "plain" else [])]
    expected = [torch.cat(parts) for parts in zip(*[scale.output_moments() for scale in made], strict=True)]
    got = together.output_moments(made)
    assert got is not None
    torch.testing.assert_close(list(got), expected)
    assert together.output_moments([made[0], made[1].float()]) is None


def test_the_box_holds_every_parameter():
    made = scales(bayesnorm.Bayes(floor=0.1), bayesnorm.Bayes(floor=0.2, stochastic_bias=True))
    with torch.no_grad():
        for scale in made:
            scale.s.copy_(torch.linspace(-1, 1, len(scale.s)))
            for parameter in scale.variance_parameters():
                parameter.copy_(torch.linspace(-1e5, 1e5, len(parameter)))
    together.box_(made)
    for scale, floor in zip(made, (0.1, 0.2), strict=True):
        torch.testing.assert_close(scale.s.detach(), torch.linspace(-1, 1, len(scale.s)).double().clamp(min=floor))
        for parameter in scale.variance_parameters():
            assert (parameter.min().item(), parameter.max().item()) == (U_MIN, U_MAX)
    together.box_([])
