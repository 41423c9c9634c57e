"""What is found out about a run is stored beside it, and made anew when it would come out differently."""

import errno
import json
import math
import os

import pytest
import torch
from small_data import made_up, network

from bayesnorm import posterior
from bayesnorm.errors import RunError
from bayesnorm.evaluate import Metrics, as_json, attack_curve, evaluate, examples, noise_curve
from bayesnorm.train import documents, durable
from bayesnorm.train.config import Config
from bayesnorm.train.documents import (
    ATTACK,
    NOISE,
    Trained,
    certainty,
    disturbed_as_json,
    evaluation,
    evaluation_work,
    final_evaluation,
    robustness,
    stored,
    stored_evaluation,
)
from bayesnorm.train.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return Trained(RunFolder(tmp_path), network("weight", "bayes"), made_up(), Config(seed=3), 7)


@pytest.fixture
def made(monkeypatch):
    """The documents that were made, by the function that made them."""
    found = []

    def watched(name):
        function = getattr(documents, name)

        def call(*args, **options):
            found.append(name)
            return function(*args, **options)

        return call

    for name in ("evaluate", "examples", "noise_curve", "attack_curve"):
        monkeypatch.setattr(documents, name, watched(name))
    return found


def on_disk(run, name):
    return json.loads((run.folder.path / name).read_text())


# Content.


def test_an_evaluation_holds_the_measures_and_the_learned_noise(run):
    with torch.no_grad():
        run.net[0].scale.u.copy_(torch.linspace(-3, -1, 5))
        run.net[0].scale.s[2] *= -1
    found = evaluation(run, "test", 12)
    expected = as_json(evaluate(run.net, run.data, "test", 12, seed=3))
    assert {key: found[key] for key in expected} == expected
    assert list(found["metrics"]) == ["single", "moments", "mc10", "mc12"]
    about = {"split": "test", "samples": 12, "step": 7, "data": "made-up", "classes": ["a", "b", "c"]}
    assert {key: found[key] for key in about} == about
    for name, (mean, sigma) in posterior(run.net).items():
        assert found["channels"][name] == pytest.approx((sigma / mean.abs()).flatten().tolist())
        assert found["sigma_over_s"][name] == pytest.approx((sigma / mean.abs()).mean().item())
    assert found["channels"]["0"] == pytest.approx(torch.linspace(-3, -1, 5).exp().tolist(), rel=1e-5)
    assert run.folder.read("evaluation-test.json") == found


def test_a_network_that_draws_nothing_has_no_noise(run, tmp_path):
    plain = Trained(run.folder, network(None), run.data, run.config, 7)
    found = evaluation(plain, "val", 12)
    assert found["channels"] == found["sigma_over_s"] == {}
    assert list(found["metrics"]) == ["single"]
    assert found["metrics"]["single"]["temperature"] is None


def test_certainty_and_robustness_are_those_of_the_functions(run):
    found = certainty(run, 5)
    expected = examples(run.net, run.data, 5)
    assert {key: found[key] for key in expected} == expected
    found = robustness(run, limit=9)
    assert found["count"] == 9
    curves = {
        "noise": noise_curve(run.net, run.data, "test", NOISE, limit=9),
        "attack": attack_curve(run.net, run.data, "test", ATTACK, limit=9),
    }
    for name, curve in curves.items():
        for point, (strength, metrics) in zip(found[name], curve, strict=True):
            values = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece}
            assert point == {"strength": strength, **{key: pytest.approx(value) for key, value in values.items()}}


def test_an_infinite_likelihood_is_null():
    (point,) = disturbed_as_json([(0.1, Metrics(3, 0.5, math.inf, 0.1))])
    assert point == {"strength": 0.1, "accuracy": 0.5, "nll": None, "ece": 0.1}


@pytest.mark.parametrize("part", ["train", "val", "test"])
@pytest.mark.parametrize("samples", [0, 12])
def test_the_work_is_what_progress_counts(run, part, samples):
    seen = []
    evaluation(run, part, samples, seen.append)
    assert sum(seen) == evaluation_work(run, part, samples)


def test_documents_are_made_with_the_numerics_of_the_run(run):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()

    def make():
        return {"deterministic": torch.are_deterministic_algorithms_enabled(), "drawn": torch.rand(1).item()}

    found = stored(run, "figures.json", {}, make)
    assert found["deterministic"] is True
    torch.manual_seed(run.config.seed)
    assert found["drawn"] == torch.rand(1).item()
    torch.random.set_rng_state(before)
    assert not torch.are_deterministic_algorithms_enabled()


# Made once, and anew.


def all_documents(run):
    return [evaluation(run, "test", 4), evaluation(run, "val", 4), certainty(run, 4), robustness(run, 6)]


def test_what_was_made_is_not_made_again(run, made):
    first = all_documents(run)
    assert made == ["evaluate", "evaluate", "examples", "noise_curve", "attack_curve"]
    # Another process, which has nothing but the folder and the network.
    again = Trained(RunFolder(run.folder.path), network("weight", "bayes"), made_up(), run.config, 7)
    assert all_documents(again) == first
    assert len(made) == 5


def _other_weights(run, monkeypatch):
    with torch.no_grad():
        run.net[0].weight[0] *= 1.5


def _other_sigma(run, monkeypatch):
    with torch.no_grad():
        run.net[2].scale.u += 0.1


def _other_version(run, monkeypatch):
    monkeypatch.setattr(documents, "VERSION", documents.VERSION + 1)


@pytest.mark.parametrize("change", [_other_weights, _other_sigma, _other_version])
def test_another_network_or_version_has_documents_of_its_own(run, made, monkeypatch, change):
    first = all_documents(run)
    made.clear()
    change(run, monkeypatch)
    second = all_documents(run)
    assert made == ["evaluate", "evaluate", "examples", "noise_curve", "attack_curve"]
    assert all(a["network"] != b["network"] or a["version"] != b["version"] for a, b in zip(first, second, strict=True))
    assert all_documents(run) == second, "the new ones are stored in place of the old"
    assert len(made) == 5


def test_other_settings_have_documents_of_their_own(run, made):
    all_documents(run)
    made.clear()
    assert list(evaluation(run, "test", 5)["metrics"])[-1] == "mc5"
    assert certainty(run, 5)["way"] == "mc5"
    assert robustness(run, 7)["count"] == 7
    assert made == ["evaluate", "examples", "noise_curve", "attack_curve"]
    made.clear()
    evaluation(run, "val", 4)
    assert made == [], "another split is another file"
    assert robustness(run, None)["count"] == 12
    made.clear()
    robustness(run)
    assert made == [], "the first 2000 of 12 are all of them"


def test_a_damaged_document_is_ignored_with_a_warning(run, made):
    first = evaluation(run, "test", 4)
    path = run.folder.path / "evaluation-test.json"
    path.write_bytes(path.read_bytes().replace(b'"accuracy": 0', b'"accuracy": 1', 1))
    with pytest.warns(UserWarning, match=r"evaluation-test\.json is damaged.*; it is ignored"):
        assert evaluation(run, "test", 4) == first
    assert made == ["evaluate"] * 2
    assert evaluation(run, "test", 4) == first
    assert made == ["evaluate"] * 2, "it was written anew"


# Folders that cannot be written.


def refuse(monkeypatch, number):
    def replace(*paths):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(durable.os, "replace", replace)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS], ids=errno.errorcode.get)
def test_in_a_folder_that_may_not_be_written_nothing_is_stored(run, monkeypatch, number):
    refuse(monkeypatch, number)
    with pytest.warns(UserWarning, match=r"may not be written: evaluation-test\.json is not stored"):
        found = evaluation(run, "test", 4)
    assert found["metrics"]["mc4"]["count"] == 12
    assert list(run.folder.path.iterdir()) == []


def test_a_full_disk_is_an_error(run, monkeypatch):
    refuse(monkeypatch, errno.ENOSPC)
    with pytest.raises(RunError, match=r"evaluation-test\.json could not be written"):
        evaluation(run, "test", 4)


# What was measured before.


def test_what_was_not_evaluated_is_named_with_the_remedy(run):
    command = f"`bayesnorm eval {run.folder.path} --split val` does it"
    with pytest.raises(RunError, match="was not evaluated") as caught:
        stored_evaluation(run.folder, "val")
    assert command in str(caught.value)
    found = evaluation(run, "val", 4)
    assert stored_evaluation(run.folder, "val") == found
    run.folder.write("evaluation-val.json", {**found, "version": 1})
    with pytest.raises(RunError, match="by another version of bayesnorm") as caught:
        stored_evaluation(run.folder, "val")
    assert command in str(caught.value)


def test_the_final_evaluation_is_that_of_the_last_step(run, monkeypatch):
    assert final_evaluation(run.folder, {"steps": 7}) is None
    found = evaluation(run, "test", 4)
    assert final_evaluation(run.folder, {"steps": 7}) == found
    assert final_evaluation(run.folder, {"steps": 8}) is None, "the run went on after it was evaluated"
    _other_version(run, monkeypatch)
    assert final_evaluation(run.folder, {"steps": 7}) is None
