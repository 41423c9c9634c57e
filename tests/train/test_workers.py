import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest

import bayesnorm
from bayesnorm.errors import BayesnormError, StoppedError
from bayesnorm.train.events import Started, Tried
from bayesnorm.train.workers import side_by_side


def quiet(*names):
    return {name: lambda event: None for name in names}


def test_each_has_a_process_of_one_thread_and_its_events_come_here(tmp_path):
    seen = []
    side_by_side(["a", "b", "c"], jobs.counts, (tmp_path,), dict.fromkeys("abc", seen.append))
    places = [(tmp_path / name).read_text().split() for name in "abc"]
    assert len({pid for pid, _ in places} - {str(os.getpid())}) == 3
    assert {threads for _, threads in places} == {"1"}
    assert seen == 3 * [Started(None, 0.5, 0, 0, 1, 1)], "the network does not travel"


def test_one_at_a_time_if_that_is_asked_for(tmp_path):
    """Two are the default: below, one waits for the other."""
    side_by_side(["a", "b"], jobs.alone, (tmp_path,), quiet("a", "b"), at_once=1)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "alone", "b": "alone"}


def test_nothing_to_do_is_nothing_done(tmp_path):
    assert side_by_side([], jobs.counts, (tmp_path,), {}) is None
    assert list(tmp_path.iterdir()) == []


def test_an_error_ends_all_after_they_have_saved(tmp_path):
    with pytest.raises(BayesnormError, match="bad: diverged at step 3") as caught:
        side_by_side(["good", "bad", "never"], jobs.fails, (tmp_path,), quiet("good", "bad", "never"))
    assert caught.value.exit_code == 3
    assert (tmp_path / "good-saved").exists()
    assert not (tmp_path / "never-saved").exists()


def test_what_is_told_after_an_error_is_received_too(tmp_path):
    told = []
    with pytest.raises(BayesnormError, match="bad: diverged at step 3"):
        side_by_side(["good", "bad"], jobs.tells_at_the_end, (tmp_path,), {"good": told.append, "bad": told.append})
    assert [event.trial for event in told[1:]] == list(range(5000))


def test_warnings_of_all_processes_are_given_here_by_name(tmp_path, capfd):
    told = []
    with pytest.warns(RuntimeWarning) as given:
        side_by_side(["a", "b"], jobs.warns, (tmp_path,), {"a": told.append, "b": told.append})
    assert sorted(str(one.message) for one in given) == [f"{n}: the last checkpoint is damaged" for n in "ab"]
    assert {one.filename for one in given} == {__file__}
    assert told == 2 * [Tried(1, 1, 0.1, 1.0)]
    assert "damaged" not in capfd.readouterr().err, "not printed by the processes"


def test_a_process_that_dies_is_named(tmp_path):
    with pytest.raises(BayesnormError, match="a: its process ended with -9"):
        side_by_side(["a"], jobs.dies, (tmp_path,), quiet("a"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_all(tmp_path, number):
    before = signal.getsignal(number)

    def told(event):
        assert isinstance(event, Tried)
        signal.raise_signal(number)

    with pytest.raises(StoppedError, match="the same command goes on") as caught:
        side_by_side(["a"], jobs.waits, (tmp_path,), {"a": told})
    assert caught.value.exit_code == 128 + number
    assert (tmp_path / "a-saved").exists()
    assert signal.getsignal(number) == before


PARENT = """
import sys
import jobs
from bayesnorm.train.workers import side_by_side
if __name__ == "__main__":
    side_by_side(["a"], jobs.waits, (sys.argv[1],), {"a": lambda event: None})
"""


def test_nobody_works_on_when_the_parent_was_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    places = os.pathsep.join([str(Path(bayesnorm.__file__).parents[1]), str(Path(jobs.__file__).parent)])
    parent = subprocess.Popen([sys.executable, script, tmp_path], env={**os.environ, "PYTHONPATH": places})
    wait_for(tmp_path / "started")
    parent.kill()
    parent.wait()
    wait_for(tmp_path / "a-saved")
    assert (tmp_path / "a-saved").exists()


def wait_for(path):
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{path} does not come")
