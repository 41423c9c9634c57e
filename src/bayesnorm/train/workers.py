"""Several trainings side by side, each in a process of its own with one thread."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ..errors import BayesnormError, StoppedError
from .events import Callback, EpochEnded, Event, Started
from .signals import caught

Work = Callable[..., None]
"""``work(name, emit, *arguments)``, a function of a module: the process imports it."""


AT_ONCE = 2
"""Processes, unless another number is asked for."""
MANY = 1000
"""Events that are handed on at a time."""


@dataclass(frozen=True)
class _Failed:
    message: str
    status: int


@dataclass(frozen=True)
class _Warned:
    message: str
    category: type[Warning]


def side_by_side(
    names: Sequence[str],
    work: Work,
    arguments: Sequence[Any],
    show: dict[str, Callback],
    at_once: int | None = None,
    stop_at: float | None = None,
) -> None:
    """Do ``work`` for every name, some at a time; the first error ends all, after they have saved their state.

    Their warnings are given here, with the name in front.

    Two processes of one thread are faster than one of two: small networks have nothing to divide.

    Arguments:
        names: what to do, the longest first.
        work: called in the process.
        arguments: the same for all.
        show: called here with the events of each.
        at_once: processes; None: two, or one where there is one core.
        stop_at: time, by ``time.monotonic``, at which to stop as by a signal.
    """
    most = at_once or min(AT_ONCE, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    pending = list(names)
    running: dict[str, Any] = {}
    failed: _Failed | None = None
    told: set[str] = set()
    with caught(stop_at) as stop:
        while running or (pending and failed is None):
            while pending and len(running) < most and failed is None:
                name = pending.pop(0)
                running[name] = context.Process(target=_child, args=(name, events, work, arguments), daemon=True)
                running[name].start()
            # Also after a failure: a process ends when all that it told has been received.
            found = _receive(events, show)
            failed = failed or found
            if failed is None and stop.wanted:
                failed = _Failed(f"{stop.why}: the same command goes on", 128 + stop.number)
            for name in [name for name, process in running.items() if not process.is_alive()]:
                found = _receive(events, show)
                failed = failed or found
                status = running.pop(name).exitcode
                if failed is None and status:
                    failed = _Failed(f"{name}: its process ended with {status}; the same command goes on", 1)
            if failed is not None:
                for name in set(running) - told:
                    running[name].terminate()  # SIGTERM: it saves its state
                    told.add(name)
    if failed is not None and failed.status > 128:
        raise StoppedError(failed.message, failed.status - 128)
    if failed is not None:
        error = BayesnormError(failed.message)
        error.exit_code = failed.status
        raise error


def _receive(events: Any, show: dict[str, Callback]) -> _Failed | None:
    """Hand on what has come; a failure is returned."""
    found = None
    wait: float | None = 0.1
    with suppress(queue.Empty):
        for _ in range(MANY):
            name, event = events.get(wait is not None, wait)
            wait = None  # what is there already, then back: others have to be looked after
            if isinstance(event, _Failed):
                found = found or event
            elif isinstance(event, _Warned):
                warnings.warn(f"{name}: {event.message}", event.category, stacklevel=3)
            else:
                show[name](event)
    return found


def _end_with_parent() -> None:
    """Save and stop when nobody waits any more: the parent was killed, the terminal closed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _child(name: str, events: Any, work: Work, arguments: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    # Ctrl-C on a terminal reaches parent and children: the parent passes it on, once.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Not killed in the middle of a message: the lock of the queue would stay taken, and all others would wait for it.
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def emit(event: Event) -> None:
        # The network stays here: only numbers travel.
        light: dict[str, Any] = {"net": None} if isinstance(event, Started | EpochEnded) else {}
        events.put((name, dataclasses.replace(event, **light)))

    def warned(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
        events.put((name, _Warned(str(message), category)))

    warnings.showwarning = warned
    try:
        try:
            work(name, emit, *arguments)
        finally:
            # Nothing is left to save, but what was told is still on its way.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Exception as error:
        if isinstance(error, StoppedError):
            return  # we were told to
        status = error.exit_code if isinstance(error, BayesnormError) else 1
        message = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        events.put((name, _Failed(f"{name}: {message}", status)))
