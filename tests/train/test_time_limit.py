"""A time limit ends a run as a signal does; how long a run has taken is noted."""

import json
import time

import pytest
from small_data import made_up, network

from bayesnorm.errors import StoppedError
from bayesnorm.train import Config, Member, find_lr, fit, fit_fleet
from bayesnorm.train.events import Tried
from bayesnorm.train.lockstep import drained
from bayesnorm.train.run_folder import RunFolder
from bayesnorm.train.session import Session
from bayesnorm.train.signals import Stop, caught

DATA = made_up()
CONFIG = Config(epochs=2, batch=12, lr=0.02)
SEARCH = Config(epochs=1, batch=12, lr_trials=5, lr_epochs=1)


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_time_that_is_up_is_a_wish_to_stop():
    assert not Stop().wanted
    assert not Stop(time.monotonic() + 100).wanted
    with caught(time.monotonic()) as stop:
        assert (stop.wanted, stop.signal, stop.number, stop.why) == (True, None, 15, "stopped by the time limit")
        stop.signal = 2
        assert (stop.number, stop.why) == (2, "stopped by signal 2")


def test_it_stops_after_a_step_and_goes_on_bitwise(tmp_path):
    whole = fit(network("weight", "bayes"), DATA, CONFIG)
    with pytest.raises(StoppedError) as stopped:
        fit(network("weight", "bayes"), DATA, CONFIG, out=tmp_path, stop_at=time.monotonic())
    assert str(stopped.value) == "stopped by the time limit after step 1: pass --resume to go on"
    assert stopped.value.exit_code == 143
    again = fit(network("weight", "bayes"), DATA, CONFIG, out=tmp_path, resume=True, stop_at=time.monotonic() + 1e6)
    assert (again.result, again.history) == (whole.result, whole.history)
    assert [line["event"] for line in events(tmp_path)] == ["start", "stop", "start", "finish"]


def test_it_stops_a_search(tmp_path):
    whole = fit(network("weight", "bayes"), DATA, SEARCH)
    with pytest.raises(StoppedError, match="stopped by the time limit during the learning-rate search"):
        fit(network("weight", "bayes"), DATA, SEARCH, out=tmp_path, stop_at=time.monotonic())
    tried = []
    again = fit(network("weight", "bayes"), DATA, SEARCH, out=tmp_path, resume=True, callbacks=[tried.append])
    assert again.result == whole.result
    assert [event.trial for event in tried if isinstance(event, Tried)] == [1, 2, 3, 4, 5]


def fleet(folder, config=CONFIG):
    methods = {"bn": ("batch", "point"), "wn": ("weight", "bayes"), "an": ("analytic", "bayes")}
    return {name: Member(network(*method), DATA, config, folder / name) for name, method in methods.items()}


@pytest.mark.parametrize("config", [CONFIG, SEARCH], ids=["given", "searched"])
def test_it_stops_a_fleet_and_all_go_on_bitwise(tmp_path, config):
    whole = fit_fleet(fleet(tmp_path / "whole", config))
    with pytest.raises(StoppedError, match="stopped by the time limit") as stopped:
        fit_fleet(fleet(tmp_path / "cut", config), stop_at=time.monotonic())
    assert stopped.value.exit_code == 143
    for name in whole:
        assert [line["event"] for line in events(tmp_path / "cut" / name)] == ["start", "stop"]
    again = fit_fleet(fleet(tmp_path / "cut", config), resume=True)
    for name, run in whole.items():
        assert (again[name].result, again[name].history) == (run.result, run.history)


def test_searches_of_a_fleet_take_turns_and_are_what_they_are_alone(tmp_path):
    """Trials of all members go on side by side, not those of one member after those of another."""
    order = []
    each = {name: [lambda event, name=name: order.append((name, event))] for name in ("bn", "wn", "an")}
    together = fit_fleet(fleet(tmp_path, SEARCH), callbacks=each)
    trying = [name for name, event in order if type(event).__name__ == "Trying"]
    assert trying[:6] == ["bn", "wn", "an"] * 2
    for name, member in fleet(tmp_path / "alone", SEARCH).items():
        alone = fit(member.net, DATA, SEARCH)
        assert together[name].search == alone.search
        assert together[name].result == alone.result


def test_all_members_begin_before_one_is_looked_at(tmp_path, monkeypatch):
    """Or members of one form could not share their kernels."""
    made, log = Session._train, []

    def told(self, trainer):
        for phase in made(self, trainer):
            log.append(phase)
            yield phase

    monkeypatch.setattr(Session, "_train", told)
    fit_fleet(fleet(tmp_path))
    assert log == ([False] * 3 + [True] * 3) * 8


# How long it took.


def test_seconds_of_all_starts_are_added_up(tmp_path):
    begin = time.monotonic()
    with pytest.raises(StoppedError):
        fit(network("weight", "bayes"), DATA, CONFIG, out=tmp_path, stop_at=begin)
    fit(network("weight", "bayes"), DATA, CONFIG, out=tmp_path, resume=True)
    took = time.monotonic() - begin
    found = [line["seconds"] for line in events(tmp_path) if "seconds" in line]
    assert len(found) == 2
    assert 0 < RunFolder(tmp_path).diary.seconds() == pytest.approx(sum(found))
    assert sum(found) < took


def test_the_time_of_a_search_alone_counts_for_the_run_that_goes_on_with_it(tmp_path):
    find_lr(network("weight", "bayes"), DATA, SEARCH, out=tmp_path)
    searched = RunFolder(tmp_path).diary.seconds()
    fit(network("weight", "bayes"), DATA, SEARCH, out=tmp_path, resume=True)
    assert 0 < searched < RunFolder(tmp_path).diary.seconds()


def test_members_share_the_time_of_their_device(tmp_path):
    begin = time.monotonic()
    fit_fleet(fleet(tmp_path))
    took = time.monotonic() - begin
    seconds = [RunFolder(tmp_path / name).diary.seconds() for name in ("bn", "wn", "an")]
    assert 0 < sum(seconds) < took
    assert max(seconds) == pytest.approx(min(seconds), rel=0.01, abs=2e-3), "to the digits that are written"


def test_of_a_process_that_is_killed_the_time_up_to_its_last_note_is_known(tmp_path):
    class KilledError(Exception):
        pass

    def kill(event):
        if type(event).__name__ == "Stepped" and event.step == 6:
            raise KilledError

    often = Config(epochs=2, batch=12, lr=0.02, checkpoint_seconds=1e-9)
    with pytest.raises(KilledError):
        fit(network("weight", "bayes"), DATA, often, out=tmp_path, callbacks=[kill])
    assert {line["event"] for line in events(tmp_path)} == {"start", "save", "time"}
    assert RunFolder(tmp_path).diary.seconds() > 0


def test_damaged_lines_count_nothing(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.diary.seconds() == 0.0
    folder.diary.note("stop", seconds=1.5)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'\xff\x00{\n[1]\n{"seconds": "x"}\n{"seconds": null}\n3\n')
    folder.diary.note("stop", seconds=2.0)
    assert folder.diary.seconds() == 3.5


def test_work_in_pieces_is_drained():
    def pieces():
        yield False
        yield True
        return 7

    seen = []
    assert drained(pieces(), lambda: seen.append(None)) == 7
    assert len(seen) == 2
