"""Records of runs: all that tables need, nothing that only one machine knows, and no run is taken for another."""

import json
import shutil

import pytest
import torch

from bayesnorm.errors import RunError
from bayesnorm.train import lr_search
from bayesnorm.train.documents import recorded
from bayesnorm.train.job import Job, complete, known_lr, search
from bayesnorm.train.record import record
from bayesnorm.train.run_folder import RunFolder
from bayesnorm.train.state import digest

SETTINGS = {
    **{"data": "digits", "width": 0.02, "norm": "weight", "scale": "bayes", "epochs": 1, "batch": 216, "train_eval": 0},
    **{"lr_trials": 2, "lr_epochs": 1},
}
"""Two trials and a run of six steps each."""


def quiet(event):
    pass


def job(path, **changed):
    return Job(path, {**SETTINGS, **changed}, samples=3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    done = job(tmp_path_factory.mktemp("runs") / "run")
    complete(done, quiet)
    return done


@pytest.fixture
def searched(tmp_path):
    """A run whose learning rate is known, and nothing else."""
    begun = job(tmp_path / "begun" / "run")
    search(begun, quiet, {})
    return begun


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_record_stands_for_the_run(reference, tmp_path):
    path = record(reference.path, tmp_path)
    kept = job(path)
    assert path == tmp_path / "run"
    assert kept.is_done()
    assert kept.folder.is_record()
    assert not reference.folder.is_record()
    assert kept.folder.result() == reference.folder.result()
    assert kept.folder.history() == reference.folder.history()
    assert kept.folder.seconds() == reference.folder.seconds()
    assert known_lr(kept) == known_lr(reference)
    settings = {"samples": 3}
    assert recorded(kept.folder, "evaluation-test.json", settings) == reference.folder.read("evaluation-test.json")
    assert not job(path, epochs=2).is_done(), "of other settings"


def test_a_record_holds_neither_checkpoints_nor_paths(reference, tmp_path, monkeypatch):
    about = reference.folder.about()
    place = str(reference.path.parent)
    about["recipe"]["directory"] = f"{place}/data"
    about["environment"] |= {"command": [f"{place}/bin/bayesnorm", "train", "--dir", f"{place}/data", "--lr", "auto"]}
    monkeypatch.setattr(RunFolder, "about", lambda folder: about)
    path = record(reference.path, tmp_path / "records")
    found = contents(path)
    names = {"config.json", "metrics.jsonl", "events.jsonl", "lr_search.json", "result.json", "evaluation-test.json"}
    assert set(found) == names
    assert not any(place.encode() in content for content in found.values())
    stored = json.loads(found["config.json"])
    assert stored["recipe"]["directory"] == "data"
    assert stored["environment"]["command"] == ["bayesnorm", "train", "--dir", "data", "--lr", "auto"]
    assert "platform" not in stored["environment"]


def test_it_is_only_read(reference, tmp_path):
    path = record(reference.path, tmp_path)
    before = contents(path)
    assert job(path).is_done()
    with pytest.raises(RunError, match="checkpoints are gone"):
        complete(job(path), quiet)
    assert {name: content for name, content in contents(path).items() if name != ".lock"} == before


def test_what_is_not_in_it_is_not_made_up(reference, tmp_path):
    folder = RunFolder(record(reference.path, tmp_path))
    with pytest.raises(RunError, match=r"bn-noise\.json is not in it"):
        recorded(folder, "bn-noise.json", {})
    with pytest.raises(RunError, match="measured with other settings"):
        recorded(folder, "evaluation-test.json", {"samples": 30})


def test_lost_checkpoints_make_no_record(reference, tmp_path):
    shutil.copytree(reference.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert not RunFolder(tmp_path / "run").is_record()
    assert not job(tmp_path / "run").is_done()


def test_a_run_begins_anew_from_its_recorded_search(reference, searched, tmp_path, monkeypatch):
    path = record(searched.path, tmp_path)
    assert not RunFolder(path).is_record(), "it has not ended"
    assert known_lr(job(path)) == known_lr(reference)
    monkeypatch.setattr(lr_search, "_train", lambda *args: pytest.fail("searched again"))
    trained = complete(job(path), quiet)
    assert digest(trained.net.state_dict()) == digest(complete(reference, quiet).net.state_dict())
    assert (job(path).folder.result() or {})["digest"] == (reference.folder.result() or {})["digest"]


def test_a_record_grows_with_its_run(reference, searched, tmp_path):
    path = record(searched.path, tmp_path)
    assert record(reference.path, tmp_path) == path
    assert job(path).is_done()
    assert contents(record(reference.path, tmp_path / "new")) == contents(path)


def test_something_else_is_in_the_way(reference, tmp_path):
    other = job(tmp_path / "other" / "run", seed=1, lr=0.02)
    complete(other, quiet)
    record(other.path, tmp_path)
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match="other settings: remove it"):
        record(reference.path, tmp_path)
    with pytest.raises(RunError, match="no record: choose another --to"):
        record(reference.path, other.path.parent)
    assert contents(tmp_path / "run") == before
    assert not list(tmp_path.glob(".record-*"))


def test_nothing_to_record(tmp_path):
    begun = job(tmp_path / "run", lr=0.02)
    folder = RunFolder(begun.path)
    recipe, config = begun.resolved()
    with folder.held():
        folder.begin({"config": config.as_dict(), "recipe": recipe.as_dict(), "environment": {}})
    with pytest.raises(RunError, match="nothing to record yet"):
        record(begun.path, tmp_path / "records")
    with pytest.raises(RunError, match="is no run"):
        record(tmp_path / "missing", tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_a_run_that_diverged(tmp_path):
    lost = job(tmp_path / "run", lr=1e30)
    with pytest.raises(Exception, match="diverged"):
        complete(lost, quiet)
    folder = RunFolder(record(lost.path, tmp_path / "records"))
    assert (folder.result() or {})["state"] == "diverged"
    assert not job(folder.path, lr=1e30).is_done()
    assert torch.isfinite(torch.tensor(folder.seconds()))
