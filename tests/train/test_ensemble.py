"""Runs taken together: what their networks predict together, and which may be."""

import dataclasses

import pytest
from small_data import made_up, network

from bayesnorm.errors import RunError
from bayesnorm.evaluate import deep_ensemble, nll
from bayesnorm.train import Config, fit
from bayesnorm.train.documents import Trained
from bayesnorm.train.ensemble import ensemble
from bayesnorm.train.run_folder import RunFolder

DATA = made_up()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two networks with a posterior, after an epoch."""
    root, found = tmp_path_factory.mktemp("ensemble"), []
    for seed in range(2):
        net, config = network("weight", "bayes", seed=seed), Config(epochs=1, batch=12, lr=0.02, seed=seed)
        run = fit(net, DATA, config, out=root / f"seed{seed}")
        found.append(Trained(RunFolder(root / f"seed{seed}"), net, DATA, config, run.result["steps"]))
    return found


def test_each_way_of_predicting_is_that_of_all_networks(runs):
    metrics = ensemble(runs, samples=3)["metrics"]
    nets, x = [run.net for run in runs], DATA.standardized(DATA.test.images)
    draws = {"single": 0, "mc3": 3}
    expected = {way: nll(deep_ensemble(nets, x, count), DATA.test.targets) for way, count in draws.items()}
    assert {way: found["nll"] for way, found in metrics.items()} == pytest.approx(expected, rel=1e-6)
    assert abs(expected["mc3"] - expected["single"]) > 1e-4


@pytest.mark.parametrize("name", ["mean", "std"])
def test_runs_that_see_other_inputs_are_refused(name, runs):
    other = dataclasses.replace(DATA, **{name: getattr(DATA, name) + 1})
    with pytest.raises(RunError, match="standardize their inputs differently"):
        ensemble([runs[0], dataclasses.replace(runs[1], data=other)])
