"""SIGTERM, Ctrl-C, or the time is up: finish the step, then stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Which signal has come, if any, and whether the time is up.

    Arguments:
        at: time, by ``time.monotonic``, from which on to stop; None: never.
    """

    def __init__(self, at: float | None = None) -> None:
        self.signal: int | None = None
        self.at = at

    @property
    def wanted(self) -> bool:
        """Whether to stop."""
        return self.signal is not None or (self.at is not None and time.monotonic() >= self.at)

    @property
    def number(self) -> int:
        """The signal; of a time that is up, SIGTERM."""
        return self.signal or signal.SIGTERM.value

    @property
    def why(self) -> str:
        """In words."""
        return f"stopped by signal {self.signal}" if self.signal is not None else "stopped by the time limit"

    def catch(self, number: int, frame: FrameType | None) -> None:
        """Signal handler; a second signal acts as it would have without us."""
        self.signal = number
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def caught(stop_at: float | None = None) -> Iterator[Stop]:
    """Inside, SIGTERM and SIGINT are noted instead of acting; the handlers are put back afterwards.

    Outside the main thread, where handlers cannot be set, nothing is caught.

    Arguments:
        stop_at: time, by ``time.monotonic``, that counts as a signal.
    """
    stop = Stop(stop_at)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signal.signal(number, stop.catch)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
