"""Runs as data."""

import json
import shutil

import pytest
import torch

from bayesnorm.report.listing import listed
from bayesnorm.train.identity import settings_digest
from bayesnorm.train.job import Job, complete
from bayesnorm.train.run_folder import RunFolder

SETTINGS = {"norm": "weight", "scale": "bayes", "width": 0.0625, "epochs": 3, "batch": 256, "eval_every": 2, "lr": 0.02}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run."""
    job = Job(tmp_path_factory.mktemp("runs") / "one", {**SETTINGS, "checkpoint_seconds": 5.0}, samples=2)
    torch.manual_seed(0)
    complete(job, lambda event: None)
    return job.path


def test_it_says_what_the_run_was(run):
    found = listed(run, "one")
    expected = {"run": "one", "data": "digits", "method": "weight+projection+bayes", "epochs": 3, "of": 3, "seed": 0}
    assert {name: found[name] for name in expected} == expected
    assert (found["lr"], found["searched"], found["state"]) == (0.02, False, "finished")
    # Not those of the method, those with a key of their own, or those that change nothing.
    assert found["set"] == {"width": 0.0625, "batch": 256, "eval_every": 2}
    assert found["config_digest"] == settings_digest(RunFolder(run).about())
    assert found["state_digest"] == RunFolder(run).result()["digest"]


def test_it_has_what_was_measured(run):
    found = listed(run, "one")
    history = RunFolder(run).history()
    assert found["curve"]["epoch"] == [2, 3]
    assert found["curve"]["val_nll"] == [record["val_nll"] for record in history[1:]]
    stored = json.loads((run / "evaluation-test.json").read_text())["metrics"]
    assert set(found["test"]) == set(stored)
    assert found["test"]["mc2"]["nll"] == stored["mc2"]["nll"]
    assert found["test"] == {way: {k: v for k, v in values.items() if v is not None} for way, values in stored.items()}
    assert found["val"] is None
    assert found["sigma_over_s"] == history[-1]["sigma_over_s"]


def test_a_run_without_its_checkpoints_is_listed_alike(run, tmp_path):
    for path in run.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert listed(tmp_path, "one") == listed(run, "one")


def test_an_evaluation_of_an_earlier_state_is_left_out(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.write("evaluation-test.json", {**folder.read("evaluation-test.json"), "step": 1})
    assert listed(tmp_path / "run", "one")["test"] is None


def test_a_damaged_run_says_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = listed(tmp_path, "one")
    assert found["run"] == "one"
    assert found["state"].startswith("damaged: ")


def test_a_run_that_has_not_ended_shows_what_a_checkpoint_has(run, tmp_path):
    for name in ("config.json", "metrics.jsonl", "events.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    found = listed(tmp_path, "one")
    assert (found["state"], found["epochs"], found["curve"]["epoch"]) == ("unfinished", 0, [])


def test_the_learning_rate_is_the_one_that_the_warm_up_leads_to(tmp_path):
    settings = {**SETTINGS, "epochs": 1, "warmup_steps": 100}
    complete(Job(tmp_path / "warm", settings, samples=0), lambda event: None)
    assert RunFolder(tmp_path / "warm").history()[0]["lr"] < 0.02
    assert listed(tmp_path / "warm", "warm")["lr"] == 0.02
