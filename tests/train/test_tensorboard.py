import signal
import sys

import pytest
from small_data import made_up, network

from bayesnorm.errors import StoppedError
from bayesnorm.train import Config, fit
from bayesnorm.train.events import Stepped
from bayesnorm.train.tensorboard import tensorboard

CONFIG = Config(epochs=4, batch=24, lr=0.02)


def curves(folder):
    """Tags with their (epoch, value), as TensorBoard itself reads them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def train(folder, **options):
    pytest.importorskip("tensorboard")
    with tensorboard(folder) as callback:
        callbacks = [callback, *options.pop("callbacks", [])]
        return fit(network("weight", "bayes"), made_up(), CONFIG, callbacks=callbacks, **options)


def test_every_number_of_every_epoch_is_there(tmp_path):
    run = train(tmp_path)
    found = curves(tmp_path)
    for name in ("lr", "train_loss", "train_nll", "kl", "val_nll", "val_accuracy", "val_ece", "train_eval_nll"):
        assert found[name] == [(r["epoch"], pytest.approx(r[name], rel=1e-6)) for r in run.history]
    layers = [f"sigma_over_s/{name}" for name in run.history[0]["sigma_over_s"]]
    assert len(layers) == 3
    assert set(layers) < set(found)
    assert not {"epoch", "step"} & set(found)


def test_a_resumed_run_leaves_one_curve(tmp_path):
    def halt(event):
        if isinstance(event, Stepped) and event.step == 4:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(StoppedError):
        train(tmp_path / "board", out=tmp_path / "run", callbacks=[halt])
    run = train(tmp_path / "board", out=tmp_path / "run", resume=True)
    assert [epoch for epoch, _ in curves(tmp_path / "board")["val_nll"]] == [1, 2, 3, 4]
    assert len(run.history) == 4


def test_an_error_closes_the_file(tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, callbacks=[lambda event: 1 / 0 if isinstance(event, Stepped) and event.step == 3 else None])
    assert [epoch for epoch, _ in curves(tmp_path)["val_nll"]] == [1]


def test_without_tensorboard_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"TensorBoard is not installed: pip install 'bayesnorm\[tensorboard\]'"):
        tensorboard(tmp_path).__enter__()


def test_epochs_that_were_not_evaluated_have_what_training_gives(tmp_path):
    pytest.importorskip("tensorboard")
    with tensorboard(tmp_path) as callback:
        config = Config(epochs=3, batch=24, lr=0.02, eval_every=2)
        fit(network("weight", "bayes"), made_up(), config, callbacks=[callback])
    found = curves(tmp_path)
    assert [epoch for epoch, _ in found["train_loss"]] == [1, 2, 3]
    assert [epoch for epoch, _ in found["val_nll"]] == [2, 3]
    assert [[epoch for epoch, _ in found[tag]] for tag in found if tag.startswith("sigma_over_s/")] == [[2, 3]] * 3
