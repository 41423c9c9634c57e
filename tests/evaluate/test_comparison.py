"""Baselines judged as everything else is: what the functions of ``baselines`` say, with a temperature of validation."""

import dataclasses
from collections.abc import Callable, Iterable
from itertools import islice

import pytest
import torch
from small_data import made_up, network, state
from torch import Tensor, nn

import bayesnorm
from bayesnorm import bn_noise
from bayesnorm.data.augment import Augment
from bayesnorm.data.base import Data
from bayesnorm.data.passes import images_of
from bayesnorm.evaluate import Judgement, calibrated_nll, comparison, error_coverage, evaluate, fit_temperature, nll
from bayesnorm.evaluate.baselines import (
    deep_ensemble,
    mc_batch_norm,
    mc_dropout,
    stochastic_batch_norm,
    training_batches,
)
from bayesnorm.evaluate.comparison import judged, of_batch_norm, of_dropout, of_ensemble, of_network

DATA = made_up(augment=Augment(shift=1), augment_val=True)


def random_network(pixels: bool = False) -> nn.Module:
    """Batch norm and dropout, with running statistics that are not the initial ones."""
    torch.manual_seed(3)
    layers: list[nn.Module] = [nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.4)]
    head = [nn.Conv2d(5, 3, 1)] if pixels else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)]
    net = nn.Sequential(*layers, *head)
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2)
    return net


def images(data: Data, part: str, seed: int) -> tuple[Tensor, Tensor]:
    found = list(images_of(data, part, seed))
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


def agrees(found: Judgement, data: Data, seed: int, directly: Callable[[Iterable[Tensor]], Tensor]) -> None:
    """A judgement is that of log-probabilities which come directly from a function, whole splits at once."""
    (x, targets), (val, val_targets) = images(data, "test", seed), images(data, "val", seed)
    log_probs = directly(x)
    temperature = fit_temperature(directly(val), val_targets)
    measures = found.measures
    assert measures.nll == pytest.approx(nll(log_probs, targets), rel=1e-6)
    assert measures.temperature == pytest.approx(temperature, rel=1e-5)
    assert measures.calibrated_nll == pytest.approx(calibrated_nll(log_probs, targets, temperature), rel=1e-5)
    assert measures.accuracy == pytest.approx(1 - error_coverage(log_probs, targets).risk[-1].item())
    assert measures.mutual_info is None


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_batch_norm_has_three_rows_that_are_the_baselines(pixels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MEASURED", 6)
    data, net = made_up(pixels=pixels) if pixels else DATA, random_network(pixels)
    before = state(net)
    found = of_batch_norm(net, data, 8, samples=5, seed=2)
    assert list(found) == ["MC-BN", "SBN", "SBN chi"]
    measured = bn_noise.measure(net, list(islice(training_batches(data, 8, 3), 6)))
    agrees(found["MC-BN"], data, 2, lambda x: mc_batch_norm(net, x, training_batches(data, 8, 2), 5))
    agrees(found["SBN"], data, 2, lambda x: stochastic_batch_norm(net, x, measured, 5, 2))
    agrees(found["SBN chi"], data, 2, lambda x: stochastic_batch_norm(net, x, 8, 5, 2))
    assert len({judgement.measures.nll for judgement in found.values()}) == 3
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_dropout_has_a_row() -> None:
    net = random_network()
    found = of_dropout(net, DATA, samples=4, seed=1)
    assert list(found) == ["MC-drop"]
    agrees(found["MC-drop"], DATA, 1, lambda x: mc_dropout(net, x, 4, 1))
    with pytest.raises(ValueError, match="has no dropout layer"):
        of_dropout(network(None), DATA)


@pytest.mark.parametrize("samples", [0, 3])
def test_an_ensemble_has_a_row(samples: int) -> None:
    nets = [network("weight", "bayes", seed=seed) for seed in range(3)]
    found = of_ensemble(nets, DATA, samples, seed=4)
    assert list(found) == ["average"]
    agrees(found["average"], DATA, 4, lambda x: deep_ensemble(nets, x, samples))
    members = [of_ensemble([net], DATA, samples, seed=4)["average"].measures.nll for net in nets]
    assert found["average"].measures.nll < sum(members) / 3, "Jensen"


def test_another_split_can_be_judged() -> None:
    net = network("weight", "bayes")
    found = judged(lambda x: deep_ensemble([net], x), DATA, seed=4, part="val").measures
    x, targets = images(DATA, "val", 4)
    expected = nll(bayesnorm.predict(net, x, samples=0).log_probs, targets)
    assert found.nll == pytest.approx(expected, rel=1e-6)
    assert found.temperature is None


def test_a_split_that_is_the_validation_split_has_no_temperature() -> None:
    data = dataclasses.replace(DATA, test=DATA.val)
    found = judged(lambda x: deep_ensemble([network("weight")], x), data).measures
    assert found.temperature is None
    assert found.calibrated_nll is None


def test_objects_are_matched_as_in_an_evaluation() -> None:
    """The first pixel of every image is an object, and so are the others: what the SEG measure needs."""
    data, net = made_up(pixels=True), network("weight", pixels=True)
    objects = torch.ones_like(data.test.targets)
    data = dataclasses.replace(data, test=dataclasses.replace(data.test, objects=objects))
    found = judged(lambda x: deep_ensemble([net], x), data).measures
    assert found.seg == evaluate(net, data, samples=0)["single"].measures.seg
    assert found.seg is not None


def test_objects_of_images_that_are_augmented_are_not_matched() -> None:
    """Training images are, and their objects are where they were before."""
    data, net = made_up(pixels=True), network("weight", pixels=True)
    objects = torch.ones_like(data.train.targets)
    data = dataclasses.replace(data, train=dataclasses.replace(data.train, objects=objects))
    assert judged(lambda x: deep_ensemble([net], x), data, part="train").measures.seg is None


@pytest.mark.parametrize(
    ("net", "ways"),
    [
        (random_network(), ["MC-BN", "SBN", "SBN chi", "MC-drop"]),
        (network("batch"), ["MC-BN", "SBN", "SBN chi"]),
        (nn.Sequential(nn.Dropout(0.5), network("weight")), ["MC-drop"]),
        (network("analytic", "bayes"), []),
    ],
    ids=["both", "batch norm", "dropout", "none"],
)
def test_a_network_has_the_baselines_that_it_allows(net: nn.Module, ways: list[str]) -> None:
    found = of_network(net, DATA, 8, samples=3, seed=2)
    assert list(found) == ways
    if "MC-BN" in found:
        agrees(found["MC-BN"], DATA, 2, lambda x: mc_batch_norm(net, x, training_batches(DATA, 8, 2), 3))
    if "MC-drop" in found:
        agrees(found["MC-drop"], DATA, 2, lambda x: mc_dropout(net, x, 3, 2))
