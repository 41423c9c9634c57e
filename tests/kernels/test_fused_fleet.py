"""Fleets of the fused engine, interpreted on the CPU or on CUDA: members with the same convolutions share a stack.

TRITON_INTERPRET=1 pytest tests/kernels
"""

import pytest
import torch
from chains import SHORT, chain
from interpreted import DEVICE, MARKS

from bayesnorm.data import Split, make_data
from bayesnorm.train import Config, fit
from bayesnorm.train.events import measured
from bayesnorm.train.fleet import Member, fit_fleet
from bayesnorm.train.fused.dock import Bench

pytestmark = MARKS


def images(count=3, side=4):
    """Three images in batches of two: the last is short."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    split = Split(x, torch.randint(0, 10, (count,), generator=generator))
    return make_data("made up", split, split[:4], split[:4], tuple("0123456789")).to(DEVICE)


def net(seed=0):
    torch.manual_seed(seed)
    return chain(SHORT, "weight", "point").to(DEVICE)


@pytest.fixture
def runs(monkeypatch):
    """How many models each call of the kernels moved on."""
    found, run = [], Bench.run

    def told(self, trainers, count, size):
        found.append(len(trainers))
        run(self, trainers, count, size)

    monkeypatch.setattr(Bench, "run", told)
    return found


def members(path, data, **more):
    options = {"epochs": 2, "batch": 2, "engine": "fused", **more}
    return {str(i): Member(net(i), data, Config(seed=i, **options), path / str(i)) for i in range(3)}


def test_members_of_one_form_take_their_steps_in_the_same_kernels(tmp_path, runs):
    fit_fleet(members(tmp_path, images(), lr=1e-3))
    assert runs == [3] * 4


MIXED = {
    "none": (None, "point", {"project": False}),
    "weight+projection+bayes": ("weight", "bayes", {"clip": 0.5, "kl_factor": 2.0}),
    "weight+noise": ("weight", "noise", {"project": False}),
    "analytic+projection+bayes": ("analytic", "bayes", {"variance_step": 300.0, "momentum": 0.8}),
    "batch": ("batch", "point", {"project": False}),
    "batch+projection": ("batch", "point", {}),
}


def mixed(path, data):
    """One of each kind, and a second of one of them in between."""
    made = {}
    for name, (norm, scale, more) in [*MIXED.items(), ("again", MIXED["weight+noise"])]:
        torch.manual_seed(0)
        network = chain(SHORT, norm, scale).to(DEVICE)
        config = Config(epochs=1, batch=3, engine="fused", lr=1e-3, seed=int(name == "again"), **more)
        made[name] = Member(network, data, config, path / name)
    return made


def test_members_that_normalize_in_different_ways_share_their_convolutions(tmp_path, runs):
    """On maps of 64 pixels, whose sums the convolutions make, and of fewer."""
    data = images(3, 8)
    together = fit_fleet(mixed(tmp_path, data))
    assert runs == [5, 2]
    runs.clear()
    for name, member in mixed(tmp_path / "alone", data).items():
        assert fit(member.net, data, member.config).result == together[name].result
    assert runs == [1] * 7
    assert len({run.result["digest"] for run in together.values()}) == 7


def test_so_do_the_trials_of_their_searches(tmp_path, runs):
    data, search = images(2), {"epochs": 1, "lr": "auto", "lr_trials": 2, "lr_epochs": 1, "lr_high": 1e-2}
    together = fit_fleet(members(tmp_path, data, **search))
    one_by_one = DEVICE.type != "cuda"
    assert runs == ([3] * 3 if one_by_one else [6, 3])
    for name, member in members(tmp_path / "alone", data, **search).items():
        alone = fit(member.net, data, member.config)
        assert (together[name].search, together[name].result) == (alone.search, alone.result)


def test_who_comes_later_joins_the_others(tmp_path, runs):
    """One member is trained from the start; the other searches first, with networks that leave again."""
    data, epochs = images(2), {"epochs": 4, "batch": 2, "engine": "fused"}
    search = {"lr": "auto", "lr_trials": 2, "lr_epochs": 1, "lr_high": 1e-2}

    def made(path):
        configs = {"at once": Config(lr=1e-3, **epochs), "later": Config(**epochs, **search)}
        return {name: Member(net(), data, config, path / name) for name, config in configs.items()}

    together = fit_fleet(made(tmp_path))
    trials = 2 if DEVICE.type == "cuda" else 1
    assert max(runs) == 1 + trials
    assert runs.count(1) < len(runs) / 2
    for name, member in made(tmp_path / "alone").items():
        alone = fit(member.net, data, member.config)
        assert (together[name].search, together[name].result) == (alone.search, alone.result)


def test_who_was_stopped_at_another_place_is_together_with_the_others_again(tmp_path, runs):
    """Else they would ask for other steps than the others for ever."""
    data, more = images(), {"lr": 1e-3, "checkpoint_steps": 1}
    whole = fit_fleet(members(tmp_path / "whole", data, **more))

    class InterruptError(Exception):
        pass

    def interrupt(event):
        if type(event).__name__ == "Saved":
            raise InterruptError

    one = members(tmp_path / "parts", data, **more)["0"]
    with pytest.raises(InterruptError):
        fit(one.net, data, one.config, out=one.out, callbacks=[interrupt])
    runs.clear()
    together = fit_fleet(members(tmp_path / "parts", data, **more), resume=True)
    assert runs == [1, 3, 3, 2, 2]
    assert {name: run.result for name, run in together.items()} == {name: run.result for name, run in whole.items()}


def test_training_does_not_depend_on_which_epochs_are_measured(tmp_path):
    data, more = images(), {"epochs": 3, "batch": 2, "lr": 1e-3, "engine": "fused", "checkpoint_steps": 1}
    whole = fit(net(), data, Config(**more))

    class InterruptError(Exception):
        pass

    def interrupt(event):
        if type(event).__name__ == "Saved" and event.step == 3:  # in the second epoch, none measured yet
            raise InterruptError

    rarely = Config(eval_every=5, **more)
    with pytest.raises(InterruptError):
        fit(net(), data, rarely, out=tmp_path / "run", callbacks=[interrupt])
    again = fit(net(1), data, rarely, out=tmp_path / "run", resume=True)
    assert again.result == whole.result
    assert [record["epoch"] for record in measured(again.history)] == [3]
