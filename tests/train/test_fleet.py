"""Runs side by side: each as if it were alone."""

import os
import signal
from types import SimpleNamespace

import pytest
import torch
from small_data import made_up, network
from torch import nn

from bayesnorm.errors import DivergedError, RunError, StoppedError
from bayesnorm.train import Config, Member, fit, fit_fleet
from bayesnorm.train import fleet as fleets
from bayesnorm.train.events import Stepped
from bayesnorm.train.fleet import waiting
from bayesnorm.train.fused.trainer import FusedTrainer
from bayesnorm.train.run import Run
from bayesnorm.train.run_folder import RunFolder

METHODS = {"plain": (None, "point"), "bn": ("batch", "point"), "wn": ("weight", "bayes"), "an": ("analytic", "bayes")}
DATA = made_up()


def configs(engine, **more):
    """Other lengths, batches and learning rates for each."""
    sizes = {"plain": (3, 8, 0.02), "bn": (2, 16, 0.05), "wn": (4, 12, 0.01), "an": (3, 7, 0.01)}
    return {
        name: Config(epochs=epochs, batch=batch, lr=lr, engine=engine, seed=number, **more)
        for number, (name, (epochs, batch, lr)) in enumerate(sizes.items())
    }


def fleet(folder, engine="captured", **more):
    found = configs(engine, **more)
    return {name: Member(network(*METHODS[name]), DATA, found[name], folder / name) for name in METHODS}


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_every_member_is_what_it_would_be_alone(engine, tmp_path):
    together = fit_fleet(fleet(tmp_path, engine))
    assert list(together) == list(METHODS)
    for name, config in configs(engine).items():
        alone = fit(network(*METHODS[name]), DATA, config)
        run = together[name]
        assert isinstance(run, Run)
        assert run.result["digest"] == alone.result["digest"]
        assert run.history == alone.history
        assert RunFolder(tmp_path / name).result()["state"] == "finished"


def test_steps_of_the_members_take_turns(tmp_path):
    order = []
    callbacks = {name: [lambda event, name=name: order.append((name, type(event).__name__))] for name in METHODS}
    fit_fleet(fleet(tmp_path, "plain"), callbacks=callbacks)
    stepped = [name for name, kind in order if kind == "Stepped"]
    assert stepped[:8] == [*METHODS, *METHODS]


def test_the_members_share_the_time(tmp_path, monkeypatch):
    """By a clock that goes on with their steps, 12 of each; the last ones are not over when they finish."""
    steps = []

    def told(event):
        if isinstance(event, Stepped):
            steps.append(event)

    monkeypatch.setattr(fleets, "time", SimpleNamespace(monotonic=lambda: float(len(steps))))
    found = {name: Member(network(None), DATA, Config(epochs=2, batch=8, lr=0.02), tmp_path / name) for name in "ab"}
    fit_fleet(found, callbacks={name: [told] for name in found})
    seconds = [RunFolder(tmp_path / name).diary.seconds() for name in found]
    assert (len(steps), seconds) == (24, [11.0, 11.0])


def test_one_that_diverges_stops_alone(tmp_path):
    members = fleet(tmp_path)
    wild = network("weight", "bayes")
    with torch.no_grad():
        next(wild.parameters()).fill_(torch.nan)
    members["wn"] = Member(wild, DATA, members["wn"].config, tmp_path / "wn")
    found = fit_fleet(members)
    assert isinstance(found["wn"], DivergedError)
    assert RunFolder(tmp_path / "wn").result()["state"] == "diverged"
    assert [type(found[name]) for name in ("plain", "bn", "an")] == [Run, Run, Run]


class Dropping(nn.Module):
    """Draws from torch's own generator, in a function where no module tells of it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x):
        return self.layer(nn.functional.dropout(x.flatten(1), 0.5, self.training))


def test_members_that_draw_from_torch_have_its_generator_to_themselves(tmp_path):
    def made():
        torch.manual_seed(7)
        return {name: Dropping() for name in ("a", "b")}

    found = {name: Config(epochs=2, batch=8, lr=0.1, seed=seed) for seed, name in enumerate(("a", "b"))}
    torch.manual_seed(11)
    members = {name: Member(net, DATA, found[name], tmp_path / name) for name, net in made().items()}
    before = torch.get_rng_state()
    together = fit_fleet(members)
    assert torch.equal(torch.get_rng_state(), before)
    for name, net in made().items():
        assert fit(net, DATA, found[name]).history == together[name].history


def test_another_error_in_one_is_told_after_the_others_have_saved(tmp_path):
    class WrongError(Exception):
        pass

    def wrong(event):
        if type(event).__name__ == "Stepped" and event.step >= 2:
            raise WrongError

    with pytest.raises(WrongError):
        fit_fleet(fleet(tmp_path, "plain"), callbacks={"bn": [wrong]})
    assert all(RunFolder(tmp_path / name).peek() is not None for name in ("plain", "wn", "an"))
    resumed = fit_fleet(fleet(tmp_path, "plain"), resume=True)
    assert all(isinstance(run, Run) for run in resumed.values())


def test_where_one_folder_cannot_be_used_none_is_trained(tmp_path):
    """Also those that came before it."""
    (tmp_path / "wn").mkdir()
    (tmp_path / "wn" / "letter.txt").write_text("not a run")
    steps = []
    callbacks = {name: [lambda event: steps.append(type(event).__name__)] for name in METHODS}
    with pytest.raises(RunError, match=r"letter\.txt"):
        fit_fleet(fleet(tmp_path), callbacks=callbacks)
    assert steps == []
    assert not (tmp_path / "plain" / "checkpoints").exists()


PLACES = {
    "the last look and the first": (1407, None, [(5, 1406), (6, 0), (6, 0)]),
    "in the middle": (1407, None, [(5, 600), (6, 0), (6, 1406)]),
    "a look apart in a long epoch": (5008, None, [(5, 2000), (5, 0)]),
    "checkpoints after each step": (7, 1, [(5, 6), (6, 0)]),
    "checkpoints at other places of each epoch": (1407, 500, [(5, 0), (6, 0)]),
}


def standing(steps, every, epoch, batch):
    """A trainer of which only its place counts."""
    trainer = FusedTrainer.__new__(FusedTrainer)
    trainer.epoch, trainer.batch, trainer.form, trainer.batches = epoch, batch, "form", range(steps)
    trainer.data = SimpleNamespace(train=range(32 * steps - 24))
    trainer.config = SimpleNamespace(batch=32, checkpoint_steps=every)
    return trainer


def launched(steps, every, places, choose):
    """Steps that the device takes up to epoch 12, those of members together once; and how many were of all."""
    trainers = {str(i): standing(steps, every, *place) for i, place in enumerate(places)}
    count = shared = 0
    while trainers:
        going = trainers.keys() - choose(trainers)
        assert going, "all wait"
        asked = {name: trainers[name].ahead() for name in going}
        count += sum(steps for steps, _ in set(asked.values()))
        shared += asked[min(going)][0] if len(going) == len(places) and len(set(asked.values())) == 1 else 0
        for name, (taken, _) in asked.items():
            trainer = trainers[name]
            trainer.epoch, trainer.batch = divmod(trainer.epoch * steps + trainer.batch + taken, steps)
            if trainer.epoch == 12:
                del trainers[name]
    return count, shared


@pytest.mark.parametrize("case", PLACES)
def test_members_that_were_stopped_at_different_places_come_together(case):
    count, shared = launched(*PLACES[case], waiting)
    before, shared_before = launched(*PLACES[case], lambda trainers: set())
    assert count < before
    assert shared > shared_before


def test_nobody_waits_for_those_who_cannot_share_kernels():
    trainers = {"far": standing(1407, None, 5, 1406), "here": standing(1407, None, 6, 0)}
    trainers["far"].form = "another form"
    assert waiting({**trainers, "searching": None}) == set()


def test_a_signal_stops_all_and_they_go_on_bitwise(tmp_path):
    whole = fit_fleet(fleet(tmp_path / "whole", checkpoint_steps=2))

    def interrupt(event):
        if type(event).__name__ == "Stepped" and event.step == 4:  # a second signal would end the process
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError) as stopped:
        fit_fleet(fleet(tmp_path / "cut", checkpoint_steps=2), callbacks={"an": [interrupt]})
    assert stopped.value.exit_code == 143
    states = [RunFolder(tmp_path / "cut" / name).result() for name in METHODS]
    assert None in states
    assert all(RunFolder(tmp_path / "cut" / name).peek() is not None for name in METHODS)
    resumed = fit_fleet(fleet(tmp_path / "cut", checkpoint_steps=2), resume=True)
    for name, run in whole.items():
        assert resumed[name].result["digest"] == run.result["digest"]
        assert resumed[name].history == run.history


def test_a_finished_fleet_is_returned_as_it_is(tmp_path):
    first = fit_fleet(fleet(tmp_path))
    events = []
    again = fit_fleet(fleet(tmp_path), resume=True, callbacks={name: [events.append] for name in METHODS})
    assert {name: run.result for name, run in again.items()} == {name: run.result for name, run in first.items()}
    assert events == []


def test_a_folder_that_is_taken_is_refused_before_anything_is_trained(tmp_path):
    fit(network("analytic", "bayes"), DATA, configs("captured")["an"], out=tmp_path / "an")
    with pytest.raises(RunError, match="holds a run already"):
        fit_fleet(fleet(tmp_path))
    assert not (tmp_path / "plain").exists()


def other():
    return network("batch")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda members, path: members.clear(), "no members"),
        (lambda members, path: members.update(bn=Member(other(), DATA, Config(precision="bf16"), path)), "precision"),
        (lambda members, path: members.update(bn=Member(other(), DATA, Config(deterministic=False), path)), "determin"),
        (lambda members, path: members.update(bn=Member(network("batch"), DATA, Config(), path / "an")), "same folder"),
        (lambda members, path: members.update(bn=Member(members["an"].net, DATA, Config(), path / "bn")), "share"),
        (lambda members, path: members.update(bn=Member(nn.Flatten(), DATA, Config(), path / "bn")), "no parameters"),
    ],
)
def test_what_cannot_be_trained_side_by_side_is_refused(change, why, tmp_path):
    members = fleet(tmp_path)
    change(members, tmp_path)
    with pytest.raises(ValueError, match=why):
        fit_fleet(members)
    assert list(tmp_path.iterdir()) == []
