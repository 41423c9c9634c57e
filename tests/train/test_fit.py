import json
import math
import os
import signal
import threading
from dataclasses import replace

import pytest
import torch
from small_data import classifier, made_up, network, state
from torch import nn

from bayesnorm.data.augment import Augment
from bayesnorm.errors import DivergedError, RunError, StoppedError
from bayesnorm.train import Config, find_lr, fit, identity
from bayesnorm.train.events import EpochEnded, Saved, Started, Stepped, Tried
from bayesnorm.train.lines import readable
from bayesnorm.train.run_folder import RunFolder
from bayesnorm.train.snapshot import ON_DEVICE, taken

QUICK = Config(epochs=3, batch=16, lr=0.02)


def own():
    """A network of the user's: batch norm and dropout of torch, nothing of ours."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3)]
    return nn.Sequential(*body)


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_history_and_result():
    net, data = network("analytic", "bayes"), made_up()
    run = fit(net, data, QUICK)
    assert run.net is net
    assert not net.training
    assert run.lr == 0.02
    assert run.search is None
    assert run.path is None
    assert [(record["epoch"], record["step"]) for record in run.history] == [(1, 3), (2, 6), (3, 9)]
    assert [record["lr"] for record in run.history] == pytest.approx([0.02 * 0.1 ** (e / 1.5) for e in range(3)])
    last = run.history[-1]
    expected = {key: last[key] for key in ("train_nll", "val_nll", "val_accuracy", "val_ece")}
    assert run.result.items() >= {"state": "finished", "epochs": 3, "steps": 9, "lr": 0.02, **expected}.items()
    assert last["train_loss"] < run.history[0]["train_loss"]


def test_the_digest_is_that_of_the_final_state():
    runs = [fit(network("weight", "bayes"), made_up(), QUICK) for _ in range(2)]
    assert runs[0].result == runs[1].result
    assert same(state(runs[0].net), state(runs[1].net))
    other = fit(network("weight", "bayes"), made_up(), Config(epochs=3, batch=16, lr=0.02, seed=1))
    assert other.result["digest"] != runs[0].result["digest"]


def test_events_come_in_order(tmp_path):
    events = []
    config = Config(epochs=2, batch=16, lr=0.02, checkpoint_steps=2)
    net = network("batch")
    run = fit(net, made_up(), config, out=tmp_path / "run", callbacks=[events.append])
    words = [type(event).__name__ for event in events]
    epoch = ["Stepped", "Stepped", "Saved", "Stepped", "EpochEnded"]
    assert words == ["Started", *epoch, "Stepped", "Saved", "Stepped", "Stepped", "EpochEnded", "Saved"]
    assert events[0] == Started(net, 0.02, 0, 0, 2, 3)
    assert [event.step for event in events if isinstance(event, Stepped)] == [1, 2, 3, 4, 5, 6]
    assert [event.record for event in events if isinstance(event, EpochEnded)] == run.history
    saved = [event for event in events if isinstance(event, Saved)]
    assert [event.step for event in saved] == [2, 4, 6]
    assert saved[-1].path.exists()
    losses = [event.loss for event in events if isinstance(event, Stepped)]
    assert losses[2] == pytest.approx(run.history[0]["train_loss"])


def test_several_callbacks_are_called_in_turn():
    calls = []
    fit(
        network("batch"),
        made_up(),
        Config(epochs=1, batch=48, lr=0.02),
        callbacks=[lambda event: calls.append("first"), lambda event: calls.append("second")],
    )
    assert calls == ["first", "second"] * 3


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(network("weight", "bayes"), made_up(), QUICK)
    find_lr(network("weight", "bayes"), made_up(), Config(batch=24, lr_trials=2, lr_epochs=1))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_holds_what_the_run_returns(tmp_path):
    run = fit(network("weight", "bayes"), made_up(), QUICK, out=tmp_path / "a" / "run")
    assert run.path == tmp_path / "a" / "run"
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.history
    stored = json.loads((run.path / "result.json").read_text())
    assert stored.items() >= run.result.items()
    about = json.loads((run.path / "config.json").read_text())
    assert Config.from_dict(about["config"]) == QUICK
    augment = {"shift": 0, "hflip": False, "vflip": False, "deform": 0.0, "spacing": 64, "validation": False}
    assert about["data"] == {"name": "made-up", "digest": made_up().digest(), "augment": augment}
    assert about["network"]["0.weight"] == "float32 (5, 1, 3, 3)"


def test_a_folder_changes_no_number(tmp_path):
    data = made_up(augment=Augment(shift=1))
    config = Config(epochs=2, batch=16, lr=0.02, checkpoint_steps=1)
    assert (
        fit(network("batch", "bayes"), data, config, out=tmp_path).result
        == fit(network("batch", "bayes"), data, config).result
    )


@pytest.mark.parametrize("make", [own, lambda: network("batch", "bayes"), lambda: network("analytic", "noise")])
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_stopped_run_goes_on_to_the_same_end(make, stop, tmp_path):
    """Dropout included: the generator is part of the state. Stops within an epoch and at the end of one."""
    data = made_up(augment=Augment(shift=1))
    expected = fit(make(), data, QUICK, out=tmp_path / "whole")

    def halt(event):
        if isinstance(event, Stepped) and event.step == stop:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(StoppedError, match="stopped by signal 15 after step"):
        fit(make(), data, QUICK, out=tmp_path / "cut", callbacks=[halt])
    run = fit(make(), data, QUICK, out=tmp_path / "cut", resume=True)
    assert run.result == expected.result
    assert run.history == expected.history
    assert same(state(run.net), state(expected.net))
    assert (run.path / "metrics.jsonl").read_bytes() == (expected.path / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("begun_on_a_gpu", [True, False])
def test_a_run_goes_on_on_another_kind_of_device(begun_on_a_gpu, tmp_path, monkeypatch):
    """Of all that a checkpoint holds, only the generator of a GPU is not there on a CPU."""
    data = made_up()

    def as_on_a_gpu(trainer):
        return {**taken(trainer), ON_DEVICE: torch.zeros(16, dtype=torch.uint8)}

    def use(what):
        for place in ("session", "snapshot"):
            monkeypatch.setattr(f"bayesnorm.train.{place}.taken", what)

    def halt(event):
        if isinstance(event, Stepped) and event.step == 4:
            signal.raise_signal(signal.SIGTERM)

    expected = fit(network("batch", "bayes"), data, QUICK)
    first, then = (as_on_a_gpu, taken) if begun_on_a_gpu else (taken, as_on_a_gpu)
    use(first)
    with pytest.raises(StoppedError):
        fit(network("batch", "bayes"), data, QUICK, out=tmp_path, callbacks=[halt])
    use(then)
    run = fit(network("batch", "bayes"), data, QUICK, out=tmp_path, resume=True)
    assert same(state(run.net), state(expected.net))
    assert run.history == expected.history


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    first = fit(network("batch", "bayes"), made_up(), QUICK, out=tmp_path)
    events = []
    again = fit(network("batch", "bayes"), made_up(), QUICK, out=tmp_path, resume=True, callbacks=[events.append])
    assert not events
    assert again.result.items() >= first.result.items()
    assert again.history == first.history
    assert same(state(again.net), state(first.net))
    assert not again.net.training


def test_resume_may_be_passed_when_nothing_is_there(tmp_path):
    assert fit(network("batch"), made_up(), QUICK, out=tmp_path / "new", resume=True).result["state"] == "finished"


def test_another_run_is_not_overwritten(tmp_path):
    fit(network("batch"), made_up(), QUICK, out=tmp_path)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.json*"))}
    attempts = [
        (network("batch"), made_up(), QUICK, False, "holds a run already: pass --resume"),
        (network("batch"), made_up(), Config(epochs=4, batch=16, lr=0.02), True, "config.epochs was 3, now it is 4"),
        (network("batch"), made_up(seed=1), QUICK, True, "other data than what is there now"),
        (network("batch"), made_up(augment=Augment(shift=1)), QUICK, True, "data.augment.shift was 0, now it is 1"),
        (network("batch"), made_up(augment_val=True), QUICK, True, "data.augment.validation was False, now it is True"),
        (network("weight"), made_up(), QUICK, True, "network.*was"),
        (classifier(), made_up(), QUICK, True, "network.*was"),
    ]
    for net, data, config, resume, words in attempts:
        with pytest.raises(RunError, match=words) as caught:
            fit(net, data, config, out=tmp_path, resume=resume)
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    for path, content in before.items():
        assert path.name == "events.jsonl" or path.read_bytes() == content


def test_a_finished_run_in_a_folder_that_cannot_be_written_is_finished(tmp_path, monkeypatch):
    """As on a disk that is mounted so; root writes wherever it is not."""
    done = fit(network("batch"), made_up(), QUICK, out=tmp_path)
    about = {part: RunFolder(tmp_path).about()[part] for part in ("config", "recipe")}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def refused(*_):
        raise AssertionError("the folder would be written")

    monkeypatch.setattr(os, "access", lambda path, wanted: wanted != os.W_OK)
    monkeypatch.setattr(RunFolder, "held", refused)
    monkeypatch.setattr(RunFolder, "take_up", refused)
    assert RunFolder(tmp_path).finished(about).items() >= done.result.items()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_run_that_does_not_say_all_about_its_data_goes_on():
    """As those of earlier versions."""
    earlier, now = {"data": {"digest": "a"}}, {"data": {"digest": "a", "augment": {"shift": 1}, "objects": "c"}}
    assert identity.same(earlier, now) is None
    assert identity.same(earlier, {"data": {**now["data"], "digest": "b"}}) == "data.digest was 'a', now it is 'b'"
    assert identity.same(now, {"data": {**now["data"], "objects": "d"}}) == "data.objects was 'c', now it is 'd'"


def test_how_often_is_saved_may_change(tmp_path):
    fit(network("batch"), made_up(), QUICK, out=tmp_path)
    config = Config(epochs=3, batch=16, lr=0.02, checkpoint_steps=1, checkpoint_seconds=1.0)
    assert fit(network("batch"), made_up(), config, out=tmp_path, resume=True).result["state"] == "finished"


def test_it_works_outside_the_main_thread(tmp_path):
    """As in a notebook that trains in the background: signals cannot be caught there."""
    before = signal.getsignal(signal.SIGTERM)
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(own(), made_up(), QUICK, out=tmp_path)))
    thread.start()
    thread.join()
    assert found[0].result["state"] == "finished"
    assert found[0].result["digest"] == fit(own(), made_up(), QUICK).result["digest"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_network_of_ones_own_learns():
    run = fit(own(), made_up(96), Config(epochs=8, batch=16, lr=0.05))
    assert run.history[-1]["val_accuracy"] > 0.7
    assert run.history[-1]["sigma_over_s"] == {}
    assert run.history[-1]["kl"] == 0


def test_a_wrong_output_is_refused_before_anything_is_saved(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    with pytest.raises(ValueError, match=r"returned \(16, 5\) for 3 classes"):
        fit(net, made_up(), QUICK, out=tmp_path)
    assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize("net", [nn.Flatten(), nn.Linear(2, 2).requires_grad_(False)], ids=["no parameter", "frozen"])
def test_nothing_to_train_is_refused(net):
    with pytest.raises(ValueError, match="nothing to train"):
        fit(net, made_up(), QUICK)


def test_settings_of_torch_are_put_back_also_after_an_error():
    def settings():
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        return (
            torch.are_deterministic_algorithms_enabled(),
            cudnn.benchmark,
            cudnn.deterministic,
            cudnn.allow_tf32,
            matmul.allow_tf32,
            signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGTERM),
        )

    before, inside = settings(), []
    fit(own(), made_up(), QUICK, callbacks=[lambda event: inside.append(settings())])
    assert settings() == before
    assert inside[0][0] is True
    with pytest.raises(ZeroDivisionError):
        fit(own(), made_up(), QUICK, callbacks=[lambda event: 1 / 0])
    assert settings() == before


def test_the_global_generator_is_put_back_and_has_no_influence():
    torch.manual_seed(5)
    expected = torch.rand(3)
    results = []
    for seed in (5, 6):
        net = own()
        torch.manual_seed(seed)
        results.append(fit(net, made_up(), QUICK).result["digest"])
        if seed == 5:
            assert torch.equal(torch.rand(3), expected)
    assert results[0] == results[1]


def test_deterministic_kernels_are_a_choice():
    inside = []
    config = Config(epochs=1, batch=48, lr=0.02, deterministic=False)
    fit(own(), made_up(), config, callbacks=[lambda e: inside.append(torch.are_deterministic_algorithms_enabled())])
    assert inside == [False] * len(inside) != []


def test_a_diverged_run_says_so_and_stays_so(tmp_path):
    config = Config(epochs=3, batch=16, lr=1e18, project=False)
    with pytest.raises(DivergedError, match=r"diverged at step .*no checkpoint yet"):
        fit(network("weight", "bayes"), made_up(), config, out=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["state"] == "diverged"
    with pytest.raises(DivergedError, match="then choose another --out"):
        fit(network("weight", "bayes"), made_up(), config, out=tmp_path, resume=True)


# The learning rate by search.

SEARCH = Config(epochs=2, batch=16, lr_trials=3, lr_epochs=1)


def test_auto_trains_with_what_the_search_found(tmp_path):
    events = []
    run = fit(network("weight", "bayes"), made_up(), SEARCH, out=tmp_path, callbacks=[events.append])
    tried = [event for event in events if isinstance(event, Tried)]
    assert [event.trial for event in tried] == [1, 2, 3]
    assert [(event.lr, event.loss) for event in tried] == [(t.lr, t.loss) for t in run.search.trials]
    assert run.lr == run.search.best == run.result["lr"]
    stored = json.loads((tmp_path / "lr_search.json").read_text())["trials"]
    assert stored == [{"lr": trial.lr, "loss": trial.loss} for trial in run.search.trials]
    given = fit(network("weight", "bayes"), made_up(), Config(epochs=2, batch=16, lr=run.lr))
    assert same(state(given.net), state(run.net)), "the search leaves no trace in the network"


@pytest.mark.parametrize("anneal", [False, True])
def test_a_trial_is_a_short_run_with_the_schedule_of_the_whole_one_or_its_beginning(anneal):
    config = Config(epochs=40, batch=16, lr_trials=2, lr_epochs=4, lr_anneal=anneal, warmup_steps=5)
    found = find_lr(network("weight", "bayes"), made_up(), config)
    for trial in found.trials:
        alone = replace(config, epochs=4, lr=trial.lr, decay_epochs=2.0 if anneal else 20.0)
        assert fit(network("weight", "bayes"), made_up(), alone).history[-1]["train_nll"] == trial.loss


def test_a_trial_gets_to_its_learning_rate_or_the_search_is_refused():
    steps = math.ceil(len(made_up().train) / 16)
    config = Config(epochs=40, batch=16, lr_trials=1, lr_epochs=2, warmup_steps=2 * steps)
    with pytest.raises(ValueError, match=rf"warmup_steps={2 * steps}: .* over after {2 * steps} steps.*--lr-epochs 3"):
        find_lr(network("weight", "bayes"), made_up(), config)
    find_lr(network("weight", "bayes"), made_up(), replace(config, lr_epochs=3))
    fit(network("weight", "bayes"), made_up(), replace(config, epochs=1, lr=0.01))


def test_an_annealed_trial_gets_to_half_of_the_learning_rate_of_the_run_or_the_search_is_refused():
    steps = math.ceil(len(made_up().train) / 16)
    config = Config(epochs=100, batch=16, lr_trials=1, lr_epochs=4, lr_anneal=True, warmup_steps=3 * steps)
    with pytest.raises(ValueError, match=rf"warmup_steps={3 * steps}: .*gets to 33% .*run to 91%; pass --no-lr-anneal"):
        find_lr(network("weight", "bayes"), made_up(), config)
    for remedy in ({"lr_anneal": False}, {"lr_epochs": 16}, {"warmup_steps": steps}):
        assert find_lr(network("weight", "bayes"), made_up(), replace(config, **remedy)).trials


def test_find_lr_is_the_search_of_fit_and_fit_goes_on_with_it(tmp_path, monkeypatch):
    net = network("weight", "bayes")
    before = state(net)
    found = find_lr(net, made_up(), SEARCH, out=tmp_path)
    assert same(state(net), before)
    assert find_lr(net, made_up(), SEARCH) == found
    monkeypatch.setattr("bayesnorm.train.lr_search.make_trainer", lambda *args: pytest.fail("searched again"))
    run = fit(net, made_up(), SEARCH, out=tmp_path, resume=True)
    assert run.search == found
    assert run.lr == found.best


def test_find_lr_on_a_finished_run_returns_its_search(tmp_path, monkeypatch):
    run = fit(network("weight", "bayes"), made_up(), SEARCH, out=tmp_path)
    monkeypatch.setattr("bayesnorm.train.lr_search.make_trainer", lambda *args: pytest.fail("searched again"))
    (tmp_path / "lr_search.json").unlink()
    with pytest.warns(UserWarning, match=r"lr_search.json is missing; restored"):
        found = find_lr(network("weight", "bayes"), made_up(), SEARCH, out=tmp_path, resume=True)
    assert found == run.search


def test_an_infinite_trial_survives_the_folder(tmp_path):
    config = replace(SEARCH, lr_low=1e-6, lr_high=1e10, project=False)  # 0.01, 100, 1e6
    found = find_lr(network("weight"), made_up(), config, out=tmp_path)
    assert found.trials[2].loss == math.inf
    assert find_lr(network("weight"), made_up(), config, out=tmp_path, resume=True) == found
    assert json.loads((tmp_path / "lr_search.json").read_text())["trials"][2]["loss"] is None


def test_a_trial_that_was_over_before_others_of_its_round_is_kept(tmp_path, monkeypatch):
    """Side by side, that which diverges is over first."""
    config = replace(SEARCH, lr_low=1e-6, lr_high=1e10, lr_epochs=2, project=False)
    whole = find_lr(network("weight"), made_up(), config, out=tmp_path / "whole")
    monkeypatch.setattr("bayesnorm.train.lr_search._at_once", lambda world: 3)

    def halt(event):
        if isinstance(event, Tried) and event.trial == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError):
        find_lr(network("weight"), made_up(), config, out=tmp_path / "cut", callbacks=[halt])
    kept = json.loads((tmp_path / "cut" / "lr_search.json").read_text())["trials"]
    assert {"lr": whole.trials[2].lr, "loss": None} in kept
    assert len(kept) < 3
    assert find_lr(network("weight"), made_up(), config, out=tmp_path / "cut", resume=True) == whole
    files = [(tmp_path / name / "lr_search.json").read_bytes() for name in ("whole", "cut")]
    assert files[0] == files[1]


def test_a_stop_during_the_search_keeps_its_trials(tmp_path):
    seen = []

    def halt(event):
        seen.append(event)
        if isinstance(event, Tried) and event.trial == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError, match="during the learning-rate search, whose trials are kept") as caught:
        fit(network("weight"), made_up(), SEARCH, out=tmp_path, callbacks=[halt])
    assert caught.value.exit_code == 130
    assert len(json.loads((tmp_path / "lr_search.json").read_text())["trials"]) == 2
    run = fit(network("weight"), made_up(), SEARCH, out=tmp_path, resume=True)
    assert run.result == fit(network("weight"), made_up(), SEARCH).result


def test_a_stop_without_a_folder_says_that_nothing_was_saved():
    def halt(event):
        if isinstance(event, Stepped) and event.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError, match=r"after step \d: nothing was saved, as there is no run folder") as caught:
        fit(network("weight"), made_up(), QUICK, callbacks=[halt])
    assert (caught.value.signal, caught.value.exit_code) == (15, 143)


def test_a_search_made_before_leaves_no_trace_in_the_generator(tmp_path):
    """Dropout draws from torch's generator: a run that finds its search done must draw what the others draw."""
    whole = fit(own(), made_up(), SEARCH, out=tmp_path / "whole")
    find_lr(own(), made_up(), SEARCH, out=tmp_path / "parts")
    parts = fit(own(), made_up(), SEARCH, out=tmp_path / "parts", resume=True)
    assert parts.result == whole.result
    assert parts.history == whole.history


@pytest.mark.parametrize(
    ("net", "config", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), QUICK, "classes"),
        (None, replace(QUICK, lr="auto", lr_trials=2, lr_epochs=1, warmup_steps=1000), "warmup_steps=1000"),
    ],
    ids=["classes", "search"],
)
def test_what_is_refused_before_it_is_trained_leaves_no_run(net, config, message, tmp_path):
    """So that the remedy can be followed with the same folder."""
    with pytest.raises(ValueError, match=message):
        fit(net or own(), made_up(), config, out=tmp_path / "run")
    done = fit(own(), made_up(), QUICK, out=tmp_path / "run")
    assert done.result["state"] == "finished"
    assert [event["event"] for event in readable(tmp_path / "run" / "events.jsonl")] == ["start", "finish"]


def test_a_callback_that_fails_after_an_epoch_leaves_the_run(tmp_path):
    def fail(event):
        if isinstance(event, EpochEnded):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(own(), made_up(), QUICK, out=tmp_path, callbacks=[fail])
    assert (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
    ("net", "data", "config", "message"),
    [
        (own, made_up(), {"epochs": 1}, "dict given instead of Config"),
        (own, (torch.rand(8, 1, 8, 8), torch.zeros(8)), QUICK, "tuple given instead of Data: make_data"),
        (lambda: own().double(), made_up(), QUICK, "parameters of torch.float64: call net.float"),
    ],
    ids=["config", "data", "double"],
)
def test_what_is_no_configuration_data_or_network_is_said(net, data, config, message):
    with pytest.raises(ValueError, match=message):
        fit(net(), data, config)
