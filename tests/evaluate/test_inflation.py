import pytest
import torch
from small_data import made_up, network
from torch import nn

import bayesnorm
from bayesnorm.evaluate import fit_inflation
from bayesnorm.evaluate.inflation import RANGE


def noisy(norm: str, sigma: float) -> nn.Module:
    """A network whose hidden scales are all as uncertain."""
    net = network(norm, "bayes")
    with torch.no_grad():
        for name, found in bayesnorm.posterior(net).items():
            net.get_submodule(name).scale.u.copy_((sigma * found.mean).log())
    return net


def distance(net: nn.Module, x: torch.Tensor, wanted: torch.Tensor, inflation: float | None) -> float:
    q = bayesnorm.predict(net, x, method="moments", inflation=inflation).log_probs
    return (wanted * (wanted.log() - q)).sum(1).mean().item()


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_no_other_factor_is_closer_to_the_draws(norm):
    data, net = made_up(), noisy(norm, 0.3)
    x = data.standardized(data.val.images)
    factor = fit_inflation(net, x, samples=200)
    wanted = bayesnorm.predict(net, x, 200).probs
    best = distance(net, x, wanted, factor)
    assert RANGE[0] < factor < RANGE[1]
    assert all(best <= distance(net, x, wanted, factor * f) + 3e-7 for f in (0.5, 0.8, 1.25, 2.0))
    assert best <= distance(net, x, wanted, None) + 3e-7


def test_without_layers_before_those_that_are_differentiated_the_factor_is_1():
    net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes")
    assert fit_inflation(net, torch.randn(9, 4), samples=20) == 1.0


def test_nothing_to_fit_is_refused():
    with pytest.raises(ValueError, match="no random scale"):
        fit_inflation(network("weight", "point"), torch.zeros(2, 1, 8, 8))


def test_a_prediction_per_pixel_is_refused():
    net = bayesnorm.convert(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), norm="weight", scale="bayes"
    )
    with pytest.raises(ValueError, match="one prediction per input"):
        fit_inflation(net, torch.zeros(2, 1, 6, 6), samples=2)


@pytest.mark.parametrize("inflation", [0.0, -1.0, float("inf"), float("nan")])
def test_factors_that_make_no_sense_are_refused(inflation):
    with pytest.raises(ValueError, match="inflation="):
        bayesnorm.predict(network("weight", "bayes"), torch.zeros(2, 1, 8, 8), method="moments", inflation=inflation)
