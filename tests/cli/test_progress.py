import io
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from bayesnorm.cli import progress
from bayesnorm.cli.progress import shown
from bayesnorm.train.events import EpochEnded, Saved, Started, Stepped, Tried, Trying

NET = nn.Linear(1, 1)


def record(epoch, nll=0.25):
    return {"epoch": epoch, "train_loss": 1.5, "val_accuracy": 0.875, "val_nll": nll}


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
