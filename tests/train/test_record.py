"""Records of runs: all that tables need, nothing that only one machine knows, and no run is taken for another."""

import json
import shutil
from pathlib import Path

import pytest

from bayesnorm.errors import DivergedError, RunError
from bayesnorm.train import documents, load, lr_search
from bayesnorm.train.documents import Trained, recorded
from bayesnorm.train.durable import read_sealed, sealed
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


def trained(path):
    found = load(path)
    return Trained(found.folder, found.net, found.data, found.config, found.step)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_record_stands_for_the_run(reference, tmp_path):
    (path,) = record([reference.path], tmp_path)
    kept = job(path)
    assert path == tmp_path / "run"
    assert kept.is_done()
    assert kept.folder.is_record()
    assert not reference.folder.is_record()
    assert kept.folder.result() == reference.folder.result()
    assert kept.folder.history() == reference.folder.history()
    assert kept.folder.diary.seconds() == reference.folder.diary.seconds()
    assert known_lr(kept) == known_lr(reference)
    settings = {"samples": 3}
    assert recorded(kept.folder, "evaluation-test.json", settings) == reference.folder.read("evaluation-test.json")
    assert not job(path, epochs=2).is_done(), "of other settings"


def test_a_record_holds_neither_checkpoints_nor_paths(reference, tmp_path, monkeypatch):
    about = reference.folder.about()
    place = str(reference.path.parent)
    about["recipe"]["directory"] = f"{place}/data"
    about["environment"] |= {
        "command": [f"{place}/bin/bayesnorm", "train", "--dir", f"{place}/data", f"--out={place}/run", "-x"]
    }
    monkeypatch.setattr(RunFolder, "about", lambda folder: about)
    (path,) = record([reference.path], tmp_path / "records")
    found = contents(path)
    names = {"config.json", "metrics.jsonl", "events.jsonl", "lr_search.json", "result.json", "evaluation-test.json"}
    assert set(found) == names
    assert not any(place.encode() in content for content in found.values())
    stored = json.loads(found["config.json"])
    assert stored["recipe"]["directory"] == "data"
    assert stored["environment"]["command"] == ["bayesnorm", "train", "--dir", "data", "--out=run", "-x"]
    assert "platform" not in stored["environment"]


def test_it_is_only_read(reference, tmp_path):
    (path,) = record([reference.path], tmp_path)
    before = contents(path)
    assert job(path).is_done()
    with pytest.raises(RunError, match="checkpoints are gone"):
        complete(job(path), quiet)
    assert {name: content for name, content in contents(path).items() if name != ".lock"} == before


def test_what_is_not_in_it_is_not_made_up(reference, tmp_path):
    folder = RunFolder(record([reference.path], tmp_path)[0])
    with pytest.raises(RunError, match=r"a record without bn-noise\.json: measure it on the run itself"):
        recorded(folder, "bn-noise.json", {})
    with pytest.raises(RunError, match=r"evaluation-test\.json has samples=3 instead of 30: measure"):
        recorded(folder, "evaluation-test.json", {"samples": 30})
    with pytest.raises(RunError, match="a record, which has no network: take the run"):
        load(folder.path)
    with pytest.raises(RunError, match=r"without an evaluation on the test set with 4 draws: `bayesnorm eval`"):
        Job(folder.path, SETTINGS, samples=4).refuse_record()
    with pytest.raises(RunError, match=r"record of another run: config\.epochs was 1, now it is 2"):
        job(folder.path, epochs=2).refuse_record()


def test_lost_checkpoints_make_no_record(reference, tmp_path):
    shutil.copytree(reference.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert not RunFolder(tmp_path / "run").is_record()
    assert not job(tmp_path / "run").is_done()


def test_a_run_begins_anew_from_its_recorded_search(reference, searched, tmp_path, monkeypatch):
    (path,) = record([searched.path], tmp_path)
    assert not RunFolder(path).is_record(), "it has not ended"
    assert known_lr(job(path)) == known_lr(reference)
    monkeypatch.setattr(lr_search, "_train", lambda *args: pytest.fail("searched again"))
    trained = complete(job(path), quiet)
    assert digest(trained.net.state_dict()) == digest(complete(reference, quiet).net.state_dict())
    assert (job(path).folder.result() or {})["digest"] == (reference.folder.result() or {})["digest"]


def test_a_search_is_only_read(searched, tmp_path):
    (path,) = record([searched.path], tmp_path)
    before = contents(path)
    assert not job(path).is_done()
    assert contents(path) == before, "not even a lock"


def test_a_record_grows_with_its_run(reference, searched, tmp_path):
    (path,) = record([searched.path], tmp_path)
    assert record([reference.path], tmp_path) == [path]
    assert job(path).is_done()
    assert contents(record([reference.path], tmp_path / "new")[0]) == contents(path)


def test_a_record_of_a_record(reference, tmp_path):
    (first,) = record([reference.path], tmp_path / "a")
    (second,) = record([first], tmp_path / "b")
    assert contents(first) == contents(second)


def test_a_record_does_not_shrink(reference, searched, tmp_path):
    shutil.copytree(reference.path, tmp_path / "run")
    documents.robustness(trained(tmp_path / "run"), limit=5)
    (path,) = record([tmp_path / "run"], tmp_path / "records")
    before = contents(path)
    assert "robustness-test.json" in before
    record([reference.path], tmp_path / "records")
    assert contents(path) == before, "what only the old one has measured is kept"
    with pytest.raises(RunError, match=r"a run that has ended, .* has not: remove it"):
        record([searched.path], tmp_path / "records")
    other = read_sealed(tmp_path / "run" / "result.json")
    (tmp_path / "run" / "result.json").write_bytes(sealed({**other, "digest": "0" * 64}))
    with pytest.raises(RunError, match="has ended otherwise: remove it"):
        record([tmp_path / "run"], tmp_path / "records")
    (tmp_path / "run" / "result.json").write_bytes(b"{}")
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        record([tmp_path / "run"], tmp_path / "records")
    assert contents(path) == before


def test_what_was_measured_before_the_end_is_left_out(reference, tmp_path):
    shutil.copytree(reference.path, tmp_path / "run")
    stale = {**read_sealed(tmp_path / "run" / "evaluation-test.json"), "network": "0" * 64}
    (tmp_path / "run" / "evaluation-val.json").write_bytes(sealed(stale))
    (path,) = record([tmp_path / "run"], tmp_path / "records")
    assert "evaluation-test.json" in contents(path)
    assert "evaluation-val.json" not in contents(path)


def test_damaged_curves_are_those_of_the_checkpoint(reference, tmp_path):
    shutil.copytree(reference.path, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"nonsense")
    (path,) = record([tmp_path / "run"], tmp_path / "records")
    assert RunFolder(path).history() == reference.folder.history()


def test_a_run_whose_end_is_damaged_is_not_recorded(tmp_path):
    run = job(tmp_path / "run", lr=0.02, checkpoint_steps=2)
    complete(run, quiet)
    last = max(run.path.glob("checkpoints/*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1])
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(RunError, match="`bayesnorm train --resume` makes"),
    ):
        record([run.path], tmp_path / "records")
    assert not (tmp_path / "records").exists()


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("swept", [True, False], ids=["interrupted", "killed"])
def test_an_interruption_leaves_the_old_or_the_new(reference, searched, tmp_path, monkeypatch, when, swept):
    (path,) = record([searched.path], tmp_path / "records")
    before, calls = contents(path), []
    rename = Path.rename

    def interrupted(source, target):
        calls.append(source)
        if len(calls) == when:
            raise KilledError
        return rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        if not swept:
            patch.setattr("bayesnorm.train.record._put_back", lambda folder: None)
        with pytest.raises(KilledError):
            record([reference.path], tmp_path / "records")
    if swept:
        assert contents(path) == before
        assert [found.name for found in (tmp_path / "records").iterdir()] == ["run"]
    record([reference.path], tmp_path / "records")
    assert job(path).is_done()
    assert [found.name for found in (tmp_path / "records").iterdir()] == ["run"]


def test_something_else_is_in_the_way(reference, tmp_path):
    other = job(tmp_path / "other" / "run", seed=1, lr=0.02)
    complete(other, quiet)
    record([other.path], tmp_path)
    before = contents(tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    for name, content in (("empty", None), ("foreign", "thesis.tex")):
        (tmp_path / name / "run").mkdir(parents=True)
        if content:
            (tmp_path / name / "run" / content).write_text("years of work")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "run").symlink_to(tmp_path / "run")
    refused = {
        tmp_path: "other settings: remove it, or choose another --to",
        other.path.parent: "is no record: remove it",
        reference.path.parent: "is the run itself: choose another --to",
        reference.path: "is a run itself: choose another folder",
        tmp_path / "file": "is no folder and cannot be made one",
        tmp_path / "empty": r"has no config\.json: remove it",
        tmp_path / "foreign": "is no record: remove it",
        tmp_path / "linked": "is no record: remove it",
    }
    for to, message in refused.items():
        with pytest.raises(RunError, match=message):
            record([reference.path], to)
    with pytest.raises(RunError, match="two runs are called run: record them in different folders"):
        record([reference.path, other.path], tmp_path / "new")
    assert contents(tmp_path / "run") == before
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.rglob(".record-*"))


def test_it_is_called_as_the_folder_was(reference, tmp_path, monkeypatch):
    (tmp_path / "name").symlink_to(reference.path)
    assert record([tmp_path / "name"], tmp_path / "records") == [tmp_path / "records" / "name"]
    monkeypatch.chdir(reference.path)
    assert record([Path()], tmp_path / "records") == [tmp_path / "records" / "run"]


def test_nothing_to_record(tmp_path):
    begun = job(tmp_path / "run", lr=0.02)
    folder = RunFolder(begun.path)
    recipe, config = begun.resolved()
    with folder.held():
        folder.begin({"config": config.as_dict(), "recipe": recipe.as_dict(), "environment": {}})
    with pytest.raises(RunError, match="nothing to record yet"):
        record([begun.path], tmp_path / "records")
    with pytest.raises(RunError, match="is no run"):
        record([tmp_path / "missing"], tmp_path / "records")
    assert not (tmp_path / "records").exists()


def test_a_run_that_diverged(tmp_path):
    lost = job(tmp_path / "run", lr=30.0, norm="none", scale="point", checkpoint_steps=1)
    with pytest.raises(DivergedError, match="diverged at step"):
        complete(lost, quiet)
    (path,) = record([lost.path], tmp_path / "records")
    result = RunFolder(path).result() or {}
    assert result["state"] == "diverged"
    assert "last good checkpoint: save-00000" in result["message"]
    assert not any(str(tmp_path).encode() in content for content in contents(path).values())
    assert not job(path, lr=30.0, norm="none", scale="point", checkpoint_steps=1).is_done()
