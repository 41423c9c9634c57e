"""Jobs: trained to the end, resumed, found finished; those of an earlier version too."""

import json
import shutil

import pytest
import torch

from bayesnorm.errors import RunError
from bayesnorm.train import Config, documents, load
from bayesnorm.train.durable import read_sealed, sealed
from bayesnorm.train.events import Started, Stepped
from bayesnorm.train.job import Job, complete, complete_named, lr_of
from bayesnorm.train.run_folder import RunFolder
from bayesnorm.train.trainer import Trainer

SETTINGS = {
    **{"data": "digits", "width": 0.02, "norm": "weight", "scale": "bayes", "epochs": 1, "batch": 216, "lr": 0.02},
    **{"train_eval": 0, "checkpoint_steps": 2},
}
"""Six steps."""


def quiet(event):
    pass


def job(path, samples=3, **changed):
    return Job(path, {**SETTINGS, **changed}, samples)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A job that was completed without interruption."""
    done = job(tmp_path_factory.mktemp("jobs") / "run")
    complete(done, quiet)
    return done


@pytest.fixture
def copied(reference, tmp_path):
    shutil.copytree(reference.path, tmp_path / "run")
    return job(tmp_path / "run")


@pytest.fixture
def only_read(monkeypatch):
    """Neither a step nor an evaluation is allowed."""
    monkeypatch.setattr(Trainer, "step", lambda *args: pytest.fail("trained again"))
    monkeypatch.setattr(documents, "evaluate", lambda *args: pytest.fail("evaluated again"))


class InterruptedHereError(Exception):
    pass


def interrupt(what, step=3):
    """Stop a job in the middle."""

    def emit(event):
        if isinstance(event, Stepped) and event.step == step:
            raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        complete(what, emit)


def digest(what):
    return what.folder.result()["digest"]


def test_settings_are_filled_by_the_data_set(tmp_path):
    recipe, config = job(tmp_path).resolved()
    assert (recipe.model, recipe.padding, recipe.width) == ("all-cnn", "same", 0.02)
    assert (config.epochs, config.batch, config.seed) == (1, 216, 0)
    with pytest.raises(ValueError, match="unknown setting 'colour'"):
        job(tmp_path, colour=1).resolved()


def test_a_job_is_trained_and_evaluated(reference):
    result = reference.folder.result()
    assert (result["state"], result["steps"]) == ("finished", 6)
    evaluation = json.loads((reference.path / "evaluation-test.json").read_text())
    assert (evaluation["samples"], evaluation["step"], evaluation["split"]) == (3, 6, "test")
    assert list(evaluation["metrics"]) == ["single", "moments", "mc3"]
    assert reference.is_done()


def test_what_is_done_is_not_done_again(reference, copied, only_read):
    events = []
    trained = complete(copied, events.append)
    assert events == []
    assert (trained.step, trained.folder.path) == (6, copied.path)
    expected = load(reference.path).net.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in trained.net.state_dict().items())
    assert copied.is_done()


def test_an_interrupted_job_goes_on(reference, tmp_path):
    begun = job(tmp_path / "run")
    assert not begun.is_done()
    interrupt(begun)
    assert not begun.is_done()
    events = []
    trained = complete(begun, events.append)
    assert [event.step for event in events if isinstance(event, Started)] == [2], "from the last checkpoint"
    assert digest(begun) == digest(reference)
    assert begun.is_done()
    assert trained.step == 6
    for name in ("evaluation-test.json", "metrics.jsonl"):
        assert (begun.path / name).read_bytes() == (reference.path / name).read_bytes()


def test_a_job_that_was_trained_but_not_evaluated_is_evaluated(reference, copied, monkeypatch):
    (copied.path / "evaluation-test.json").unlink()
    assert not copied.is_done()
    monkeypatch.setattr(Trainer, "step", lambda *args: pytest.fail("trained again"))
    complete(copied, quiet)
    assert copied.is_done()
    before, after = (path / "evaluation-test.json" for path in (reference.path, copied.path))
    assert after.read_bytes() == before.read_bytes()


def test_an_evaluation_of_other_draws_version_or_step_does_not_count(copied, monkeypatch):
    assert not job(copied.path, samples=4).is_done()
    stored = copied.folder.read("evaluation-test.json")
    for change in ({"version": 1}, {"step": 4}):
        copied.folder.write("evaluation-test.json", {**stored, **change})
        assert not copied.is_done(), change
    copied.folder.write("evaluation-test.json", stored)
    assert copied.is_done()


def test_a_job_of_other_settings_is_not_done_and_is_refused(copied):
    other = job(copied.path, epochs=2)
    assert not other.is_done()
    with pytest.raises(RunError, match=r"config\.epochs was 1, now it is 2"):
        complete(other, quiet)
    assert copied.is_done()


def test_a_process_takes_its_job_by_name(copied, tmp_path, only_read):
    events = []
    complete_named("a", events.append, {"a": copied, "b": job(tmp_path / "never")})
    assert events == []
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("asked", "lr"), [(4, None), (3, 0.02)])
def test_a_search_that_is_not_over_has_found_no_learning_rate(asked, lr, tmp_path):
    folder = RunFolder(tmp_path)
    folder.write("lr_search.json", {"trials": [{"lr": 0.01 * k, "loss": abs(k - 2.0)} for k in (1, 2, 3)]})
    assert lr_of(folder, Config(lr_trials=asked)) == lr


# Runs of a version that knew nothing of dropout.


def forget(folder, setting="dropout"):
    """Make a run what an earlier version wrote: its configuration, there and in the checkpoints, lacks a setting."""
    for path in (folder / "config.json", *folder.glob("checkpoints/save-*.json")):
        document = read_sealed(path)
        del document.get("about", document)["recipe"][setting]
        path.write_bytes(sealed(document))


def test_an_old_run_counts_as_finished(copied, only_read):
    forget(copied.path)
    assert copied.is_done()
    assert complete(copied, quiet).step == 6
    assert "dropout" not in copied.folder.about()["recipe"], "what was begun is not rewritten"
    assert load(copied.path).recipe.dropout == 0.0


def test_an_old_run_is_resumed(reference, tmp_path):
    begun = job(tmp_path / "run")
    interrupt(begun)
    forget(begun.path)
    events = []
    complete(begun, events.append)
    assert [event.step for event in events if isinstance(event, Started)] == [2]
    assert digest(begun) == digest(reference)
    assert begun.is_done()


@pytest.mark.parametrize("where", ["config.json", "checkpoints"])
def test_it_may_lack_in_one_of_the_two(copied, where, only_read):
    new = {path: path.read_bytes() for path in copied.path.rglob("*.json")}
    forget(copied.path)
    for path, content in new.items():
        if (path.name == "config.json") == (where == "checkpoints"):
            path.write_bytes(content)
    assert copied.is_done()
    assert complete(copied, quiet).step == 6


def test_an_old_run_had_no_dropout(copied):
    forget(copied.path)
    other = job(copied.path, dropout=0.5)
    assert not other.is_done()
    with pytest.raises(RunError, match=r"recipe\.dropout was 0\.0, now it is 0\.5"):
        complete(other, quiet)


def test_no_other_setting_may_lack(copied):
    forget(copied.path, "width")
    assert not copied.is_done()
    with pytest.raises(RunError, match=r"recipe\.width was None, now it is 0\.02"):
        complete(copied, quiet)
