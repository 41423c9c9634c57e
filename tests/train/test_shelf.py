"""A search that is interrupted within a trial goes on with the step after, and finds the same bits."""

import json
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from small_data import made_up, network
from torch import nn

from bayesnorm.errors import StoppedError
from bayesnorm.train import Config, find_lr, fit
from bayesnorm.train.events import Tried, Trying
from bayesnorm.train.trainer import Trainer

SEARCH = Config(epochs=1, batch=12, lr_trials=3, lr_epochs=3, warmup_steps=2)
STEPS = 12
"""Of a trial."""


class Killed(BaseException):
    """Nothing may catch it and save."""


def dropping():
    """Batch norm of torch and draws from torch's own generator, beside our norms and noise."""
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.3), network("analytic", "bayes"))


def asked(folder, config=SEARCH, callbacks=()):
    return find_lr(dropping(), made_up(), config, out=folder, resume=True, callbacks=callbacks)


def at(trial, step, action):
    """A callback that acts at one step of one trial."""

    def callback(event):
        if isinstance(event, Trying) and event.trial == trial and round(event.done * STEPS) == step:
            action()

    return callback


def killed():
    raise Killed


def steps_taken(monkeypatch):
    taken, step = [], Trainer.step

    def counted(self, stop=False):
        taken.append(self.lr)
        return step(self, stop)

    monkeypatch.setattr(Trainer, "step", counted)
    return taken


@pytest.fixture
def whole(tmp_path):
    asked(tmp_path / "whole")
    return (tmp_path / "whole" / "lr_search.json").read_bytes()


@pytest.mark.parametrize("step", [1, 4, 7, 11])
def test_a_stop_within_a_trial_loses_no_step(tmp_path, whole, monkeypatch, step):
    with pytest.raises(StoppedError, match="during the learning-rate search, whose trials are kept: pass --resume"):
        asked(tmp_path / "cut", callbacks=[at(2, step, lambda: signal.raise_signal(signal.SIGTERM))])
    taken = steps_taken(monkeypatch)
    asked(tmp_path / "cut")
    # The signal comes while a step is told, and the step after it is finished.
    assert len(taken) == 2 * STEPS - step - 1
    assert (tmp_path / "cut" / "lr_search.json").read_bytes() == whole
    assert not (tmp_path / "cut" / "trials").exists()


def test_side_by_side_all_trials_are_kept(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("bayesnorm.train.lr_search._at_once", lambda world: 3)
    with pytest.raises(StoppedError):
        asked(tmp_path / "cut", callbacks=[at(2, 5, lambda: signal.raise_signal(signal.SIGTERM))])
    assert sorted(path.name for path in (tmp_path / "cut" / "trials").iterdir()) == ["1", "2", "3"]
    taken = steps_taken(monkeypatch)
    asked(tmp_path / "cut")
    # The third is stopped at its fifth step, by which the others have taken theirs.
    assert len(taken) == 3 * (STEPS - 5)
    assert (tmp_path / "cut" / "lr_search.json").read_bytes() == whole


def test_a_killed_search_goes_on_from_the_last_checkpoint_of_its_trial(tmp_path, whole, monkeypatch):
    config = replace(SEARCH, checkpoint_steps=4)
    with pytest.raises(Killed):
        asked(tmp_path / "cut", config, [at(2, 11, killed)])
    manifest = sorted((tmp_path / "cut" / "trials" / "2").glob("*.json"))[-1]
    assert json.loads(manifest.read_text())["step"] == 8
    taken = steps_taken(monkeypatch)
    asked(tmp_path / "cut", config)
    assert len(taken) == STEPS - 8 + STEPS
    assert (tmp_path / "cut" / "lr_search.json").read_bytes() == whole


def test_a_trial_that_is_over_leaves_nothing(tmp_path):
    seen = []

    def look(event):
        if isinstance(event, Tried):
            seen.append([path.name for path in (tmp_path / "trials").iterdir()])

    asked(tmp_path, replace(SEARCH, checkpoint_steps=1), [look])
    assert seen == [[], [], []]
    assert not (tmp_path / "trials").exists()


def test_the_run_behind_an_interrupted_search_is_the_same(tmp_path):
    whole = fit(dropping(), made_up(), SEARCH)
    with pytest.raises(StoppedError):
        fit(
            dropping(),
            made_up(),
            SEARCH,
            out=tmp_path,
            callbacks=[at(3, 6, lambda: signal.raise_signal(signal.SIGINT))],
        )
    again = fit(dropping(), made_up(), SEARCH, out=tmp_path, resume=True)
    assert (again.search, again.result, again.history) == (whole.search, whole.result, whole.history)


@pytest.fixture
def cut(tmp_path):
    """A search that was killed at the eleventh step of its second trial, with checkpoints at steps 4 and 8."""
    with pytest.raises(Killed):
        asked(tmp_path / "cut", replace(SEARCH, checkpoint_steps=4), [at(2, 11, killed)])
    return tmp_path / "cut"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_a_damaged_checkpoint_of_a_trial_is_named_and_the_one_before_is_used(cut, whole, monkeypatch):
    flip(sorted((cut / "trials" / "2").glob("*.safetensors"))[-1])
    taken = steps_taken(monkeypatch)
    with pytest.warns(UserWarning, match=r"save-000002.safetensors is damaged.*going back to step 4"):
        asked(cut)
    assert len(taken) == STEPS - 4 + STEPS
    assert (cut / "lr_search.json").read_bytes() == whole


def test_a_trial_without_an_intact_checkpoint_begins_anew(cut, whole, monkeypatch):
    for path in (cut / "trials" / "2").glob("*.safetensors"):
        flip(path)
    taken = steps_taken(monkeypatch)
    with pytest.warns(UserWarning, match=r"trial 2 of the learning-rate search begins anew: no checkpoint is intact"):
        asked(cut)
    assert len(taken) == 2 * STEPS
    assert (cut / "lr_search.json").read_bytes() == whole


@pytest.mark.parametrize("other", ["learning rate", "run"])
def test_a_trial_of_another_search_is_not_taken_up(cut, whole, tmp_path, other):
    if other == "run":
        with pytest.raises(Killed):
            asked(tmp_path / "other", replace(SEARCH, seed=1, checkpoint_steps=4), [at(2, 11, killed)])
        shutil.rmtree(cut / "trials")
        (tmp_path / "other" / "trials").rename(cut / "trials")
    else:
        (cut / "trials" / "2").rename(cut / "trials" / "3")
    with pytest.warns(UserWarning, match=r"trials/\d is of another search; trial \d begins anew"):
        asked(cut)
    assert (cut / "lr_search.json").read_bytes() == whole


def test_a_run_begun_anew_in_a_folder_without_its_configuration_forgets_trials(cut, tmp_path):
    (cut / "config.json").unlink()
    shutil.rmtree(cut / "checkpoints", ignore_errors=True)
    events = []
    find_lr(dropping(), made_up(), SEARCH, out=cut, callbacks=[events.append])
    assert sum(isinstance(event, Trying) for event in events) == 3 * STEPS


def test_a_trial_whose_manifests_are_gone_begins_anew_with_a_warning(tmp_path, whole):
    often = replace(SEARCH, checkpoint_steps=2)
    with pytest.raises(Killed):
        asked(tmp_path / "cut", often, [at(2, 7, killed)])
    for manifest in (tmp_path / "cut" / "trials").rglob("*.json"):
        manifest.unlink()
    with pytest.warns(UserWarning, match=r"trial 2 of the learning-rate search begins anew.*has no manifest"):
        asked(tmp_path / "cut", often)
    found = json.loads((tmp_path / "cut" / "lr_search.json").read_bytes())
    assert found["trials"] == json.loads(whole)["trials"]
