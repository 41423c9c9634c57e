"""SIGTERM and Ctrl-C: finish the step, then stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Which signal has come, if any."""

    signal: int | None = None

    def catch(self, number: int, frame: FrameType | None) -> None:
        """Signal handler; a second signal acts as it would have without us."""
        self.signal = number
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def caught() -> Iterator[Stop]:
    """Inside, SIGTERM and SIGINT are noted instead of acting; the handlers are put back afterwards.

    Outside the main thread, where handlers cannot be set, nothing is caught.
    """
    stop = Stop()
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
