import io
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn

from bayesnorm.cli import progress
from bayesnorm.cli.progress import shown
from bayesnorm.train.events import EpochEnded, Saved, Started, Stepped, Tried, Trying

NET = nn.Linear(1, 1)


def record(epoch, nll=0.25):
    return {"epoch": epoch, "step": 10 * epoch, "train_loss": 1.5, "val_accuracy": 0.875, "val_nll": nll}


def screen(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=160)


def output(events, terminal, title=""):
    console = screen(terminal)
    with shown(console, title) as callbacks:
        for event in events:
            callbacks[title](event)
    return console.file.getvalue()


def start(epochs=4, steps=10, step=0):
    return Started(NET, 0.0123, step, step // steps, epochs, steps)


def test_a_terminal_shows_epoch_loss_validation_and_speed(monkeypatch):
    clock = iter([0.0, 100.0, *[100.0 + 0.5 * i for i in range(1, 100)]])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    events = [start(), *[Stepped(i, 2.0) for i in range(1, 11)], EpochEnded(NET, record(1)), Stepped(11, 1.2345)]
    text = output(events, True, "batch")
    assert "batch epoch 2/4 loss 1.2345 | val 87.50 %, NLL 0.2500" in text
    assert "2 steps/s" in text, "11 steps in 5.5 seconds"
    assert "\x1b[" in text, "it is drawn over"


def test_a_log_says_how_many_minutes_are_left(monkeypatch):
    """At the pace of this process: two and a half epochs of 10 took 70 seconds."""
    clock = iter([0.0, 100.0, 135.0, 170.0, 205.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    ended = [EpochEnded(NET, record(epoch)) for epoch in (3, 4, 10)]
    lines = output([start(epochs=10, step=15), *ended], False, "batch").splitlines()
    assert lines[1:] == [
        "batch: epoch 3/10 loss 1.5000 | val 87.50 %, NLL 0.2500 | 3 min left",
        "batch: epoch 4/10 loss 1.5000 | val 87.50 %, NLL 0.2500 | 3 min left",
        "batch: epoch 10/10 loss 1.5000 | val 87.50 %, NLL 0.2500",
    ]


def test_the_speed_of_a_resumed_run_counts_its_own_steps(monkeypatch):
    clock = iter([0.0, 0.0, *[float(i) for i in range(1, 9)]])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    text = output([start(step=30), Stepped(31, 1.0)], True)
    assert "epoch 4/4" in text
    assert "1 steps/s" in text


def test_a_terminal_shows_the_search():
    text = output(
        [
            Trying(3, 10, 0.0123, 0.5, 1.5),
        ],
        True,
        "weight",
    )
    assert "weight trial 3/10: learning rate 0.0123, loss 1.5000" in text


def test_trials_that_are_under_way_together_share_the_line():
    rates = {1: 0.000631, 2: 0.00398, 3: 0.0251, 4: 0.158}
    losses = {1: 2.0, 2: 1.5, 3: 1.75, 4: 9.0}
    steps = [Trying(number, 10, rates[number], 0.25, losses[number]) for number in rates]
    assert "trials 1-4/10: best learning rate 0.00398, loss 1.5000" in output(steps, True, "weight")
    text = output([*steps, Tried(4, 10, 0.158, math.inf), Tried(2, 10, 0.00398, 1.5)], True, "weight")
    assert "trials 1-3/10: best learning rate 0.0251, loss 1.7500" in text
    one = output([*steps, *[Tried(number, 10, rates[number], 1.0) for number in (1, 2, 4)]], True, "weight")
    assert "weight trial 3/10: learning rate 0.0251, loss 1.7500" in one


def test_the_bar_of_a_search_counts_what_is_over_and_the_parts_of_what_is_under_way():
    bar = Progress()
    live = progress._Live(bar, "")
    for event in (Tried(1, 8, 0.1, 1.0), Tried(4, 8, 1.0, math.inf), Trying(2, 8, 0.2, 0.5, 1.0)):
        live(event)
    live(Trying(3, 8, 0.3, 0.25, 1.0))
    assert (bar.tasks[0].completed, bar.tasks[0].total) == (2.75, 8)
    live(Trying(3, 8, 0.3, 0.75, 1.0))
    assert bar.tasks[0].completed == 3.25
    live(Tried(3, 8, 0.3, 1.0))
    live(Tried(2, 8, 0.2, 1.0))
    assert bar.tasks[0].completed == 4
    live(start())
    assert (bar.tasks[0].completed, bar.tasks[0].total) == (0, 40)


def test_nothing_stays_on_the_terminal():
    text = output([start(), Stepped(1, 1.0)], True)
    assert text.rstrip("\n").endswith(("\x1b[2K", "\x1b[?25h"))


def test_elsewhere_there_are_plain_lines():
    events = [
        Tried(1, 2, 0.00337, 1.25),
        Tried(2, 2, 0.03, math.inf),
        start(epochs=2),
        Stepped(1, 1.0),
        EpochEnded(NET, record(1)),
        Saved(10, Path("x")),
        EpochEnded(NET, record(2, None)),
    ]
    assert output(events, False, "batch").splitlines() == [
        "batch: learning rate 0.00337 (1/2): loss 1.2500",
        "batch: learning rate 0.03 (2/2): loss inf",
        "batch: 2 epochs of 10 steps, learning rate 0.0123",
        "batch: epoch 1/2 loss 1.5000 | val 87.50 %, NLL 0.2500",
        "batch: epoch 2/2 loss 1.5000 | val 87.50 %, NLL inf",
    ]


def test_a_resumed_run_says_from_where():
    assert output([start(step=20)], False) == "4 epochs of 10 steps, learning rate 0.0123, from step 20\n"


@pytest.mark.parametrize("epochs", [50, 99, 100, 149, 175, 1200])
def test_of_many_epochs_there_are_about_fifty_lines_the_last_among_them(epochs):
    events = [start(epochs=epochs), *[EpochEnded(NET, record(i)) for i in range(1, epochs + 1)]]
    lines = output(events, False).splitlines()[1:]
    assert 50 <= len(lines) <= 100
    assert lines[-1].startswith(f"epoch {epochs}/{epochs} ")


def test_lines_are_not_broken_in_a_narrow_file():
    console = Console(file=io.StringIO(), width=20)
    with shown(console, "analytic+projection+bayes") as callbacks:
        callbacks["analytic+projection+bayes"](start())
    assert len(console.file.getvalue().splitlines()) == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_only_the_first_of_several_processes_shows(terminal, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert output([start(), EpochEnded(NET, record(1))], terminal) == ""


def test_the_terminal_is_restored_after_an_error():
    console = screen(True)
    with pytest.raises(ZeroDivisionError), shown(console):
        raise ZeroDivisionError
    assert "\x1b[?25h" in console.file.getvalue(), "the cursor is back"


def test_epochs_that_were_not_evaluated_show_the_last_validation_with_its_epoch():
    def bare(epoch):
        return {"epoch": epoch, "step": 10 * epoch, "train_loss": 1.25}

    events = [start(epochs=6), *[EpochEnded(NET, bare(i)) for i in (1, 2)], EpochEnded(NET, record(3))]
    events += [*[EpochEnded(NET, bare(i)) for i in (4, 5)], EpochEnded(NET, record(6, None))]
    assert output(events, False).splitlines()[1:] == [
        "epoch 1/6 loss 1.2500",
        "epoch 2/6 loss 1.2500",
        "epoch 3/6 loss 1.5000 | val 87.50 %, NLL 0.2500",
        "epoch 4/6 loss 1.2500 | val 87.50 %, NLL 0.2500 (epoch 3)",
        "epoch 5/6 loss 1.2500 | val 87.50 %, NLL 0.2500 (epoch 3)",
        "epoch 6/6 loss 1.5000 | val 87.50 %, NLL inf",
    ]
    live = output([*events[:5], Stepped(41, 1.0)], True)
    assert "epoch 5/6 loss 1.0000 | val 87.50 %, NLL 0.2500 (epoch 3)" in live
    many = [start(epochs=200), *[EpochEnded(NET, record(i) if i % 3 == 0 else bare(i)) for i in range(1, 201)]]
    assert "epoch 200/200 loss 1.2500 | val 87.50 %, NLL 0.2500 (epoch 198)" in output(many, False)
