"""Epochs that are not evaluated: what is recorded, and that nothing else changes."""

import os
import signal

import pytest
from small_data import made_up, network

from bayesnorm.errors import StoppedError
from bayesnorm.train import Config, fit
from bayesnorm.train.config import Config as Settings
from bayesnorm.train.events import measured
from bayesnorm.train.identity import LATER, SILENT, difference, settings_digest
from bayesnorm.train.run_folder import RunFolder

DATA = made_up(train=50)  # 5 steps an epoch, the last of them short
EPOCHS = 5
METHODS = [("batch", "point"), ("analytic", "bayes")]
ENGINES = ["plain", "captured"]
TRAINED = {"epoch", "step", "lr", "train_loss", "train_nll", "kl"}


def config(every, engine="plain", **more):
    return Config(epochs=EPOCHS, batch=12, lr=0.02, engine=engine, eval_every=every, **more)


@pytest.mark.parametrize(("every", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (5, [5]), (9, [5])])
def test_every_so_many_epochs_and_the_last_are_measured(every, epochs):
    history = fit(network("analytic", "bayes"), DATA, config(every)).history
    assert [record["epoch"] for record in history] == [1, 2, 3, 4, 5]
    assert [record["epoch"] for record in measured(history)] == epochs
    assert all(set(record) == TRAINED for record in history if record["epoch"] not in epochs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("norm", "scale"), METHODS)
def test_training_does_not_depend_on_it_and_what_is_measured_is_the_same(norm, scale, engine):
    whole = fit(network(norm, scale), DATA, config(1, engine))
    for every in (2, 9):
        run = fit(network(norm, scale), DATA, config(every, engine))
        assert run.result == whole.result
        for record, full in zip(run.history, whole.history, strict=True):
            assert record == {key: full[key] for key in record}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("norm", "scale"), METHODS)
@pytest.mark.parametrize("step", [2, 5, 7, 10, 11, 20, 22])
def test_stopped_between_two_measurements_it_goes_on_bitwise(norm, scale, engine, step, tmp_path):
    """Within an epoch and at the end of one, before and after the first that is measured."""
    options = config(3, engine, checkpoint_steps=1)
    whole = fit(network(norm, scale), DATA, options)

    def halt(event):
        if type(event).__name__ == "Stepped" and event.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError):
        fit(network(norm, scale), DATA, options, out=tmp_path, callbacks=[halt])
    again = fit(network(norm, scale, seed=1), DATA, options, out=tmp_path, resume=True)
    assert (again.result, again.history) == (whole.result, whole.history)
    assert RunFolder(tmp_path).lines() == whole.history


def test_a_run_of_an_earlier_version_measured_every_epoch():
    assert LATER["config.eval_every"] == 1
    old = {"config": {key: value for key, value in Settings().as_dict().items() if key != "eval_every"}}
    assert difference(old, {"config": Settings().as_dict()}) is None
    assert difference(old, {"config": config(2).as_dict()}) is not None
    assert settings_digest({**old, "recipe": {}}) == settings_digest({"config": Settings().as_dict(), "recipe": None})


def test_the_digest_of_the_settings_leaves_out_what_changes_no_result():
    def digest(recipe=None, **options):
        return settings_digest({"config": Settings(**options).as_dict(), "recipe": recipe or {}})

    assert len(digest()) == 64
    assert digest(checkpoint_steps=3) == digest({"directory": "elsewhere"}) == digest()
    assert len({digest(), digest(seed=1), digest({"padding": "same"}), digest(eval_every=2)}) == 4


@pytest.mark.parametrize("key", SILENT)
def test_a_setting_that_came_later_leaves_published_digests_as_they_are(key):
    part, name = key.split(".")
    about = {"config": Settings().as_dict(), "recipe": {}}
    said, other = ({**about, part: {**about[part], name: value}} for value in (SILENT[key], "other"))
    assert settings_digest(said) == settings_digest(about) != settings_digest(other)


@pytest.mark.parametrize("every", [0, -1, 1.5, None, True])
def test_it_is_a_whole_number(every):
    with pytest.raises(ValueError, match=r"eval_every=.*: must be a whole number of at least 1"):
        Config(eval_every=every)
