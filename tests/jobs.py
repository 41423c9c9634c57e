"""Work for other processes, which import it by name."""

import os
import signal
import time
import warnings
from pathlib import Path

from torch import nn

from bayesnorm.errors import DivergedError
from bayesnorm.train.events import Started, Tried
from bayesnorm.train.signals import caught


def counts(name, emit, folder):
    """Tells where it runs and how, and leaves a file."""
    emit(Started(nn.Linear(1, 1), 0.5, 0, 0, 1, 1))
    Path(folder, name).write_text(f"{os.getpid()} {__import__('torch').get_num_threads()}")


def alone(name, emit, folder):
    """Tells whether another one was at work while it was."""
    mine = Path(folder, f"{name}-busy")
    mine.touch()
    met = False
    for _ in range(20):
        met = met or any(path != mine for path in Path(folder).glob("*-busy"))
        time.sleep(0.01)
    Path(folder, name).write_text("beside another" if met else "alone")
    mine.unlink()


def fails(name, emit, folder):
    """One fails, the other works until it is told to stop."""
    if name == "bad":
        while not Path(folder, "started").exists():
            time.sleep(0.01)
        raise DivergedError("diverged at step 3")
    waits(name, emit, folder)


def tells_at_the_end(name, emit, folder):
    """One fails, the other has more to tell when it is told to stop than a pipe holds."""
    fails(name, emit, folder)
    for i in range(5000):
        emit(Tried(i, 5000, 0.1, 1.0))


def waits(name, emit, folder):
    """Works until a signal comes, then saves."""
    with caught() as stop:
        Path(folder, "started").touch()
        emit(Tried(1, 1, 0.1, 1.0))
        while stop.signal is None:
            time.sleep(0.01)
    Path(folder, f"{name}-saved").touch()


def warns(name, emit, folder):
    """Has something to say, and goes on."""
    warnings.warn("the last checkpoint is damaged", RuntimeWarning, stacklevel=1)
    emit(Tried(1, 1, 0.1, 1.0))


def dies(name, emit, folder):
    """Killed from outside, as by a machine without memory."""
    os.kill(os.getpid(), signal.SIGKILL)
