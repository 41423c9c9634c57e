"""What can go wrong in a process, made to go wrong at one exact place. Installed in a child before its command runs."""

import errno
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesnorm.train.trainer import Trainer

Fault = dict[str, Any]


def install(faults: list[Fault]) -> None:
    for fault in faults:
        KINDS[fault["kind"]](**{key: value for key, value in fault.items() if key != "kind"})


def storage(call: str, name: str, action: str, times: int = 1) -> None:
    """At the ``times``-th ``call`` ("fsync", "replace", "unlink") on a file whose name contains ``name``.

    Arguments:
        action: ``"kill"``: SIGKILL before the call; ``"killed after"``; ``"kill half"``: SIGKILL with half of the bytes
            written; ``"full"``: the call fails with ENOSPC, and so does every later one.
    """
    owner = Path if call == "unlink" else os
    original = getattr(owner, call)
    seen = 0

    def faulty(target: Any, *more: Any, **options: Any) -> Any:
        nonlocal seen
        path = Path(os.readlink(f"/proc/self/fd/{target}")) if call == "fsync" else Path(more[0] if more else target)
        if name not in path.name:
            return original(target, *more, **options)
        seen += 1
        if action == "full" and seen >= times:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if seen != times:
            return original(target, *more, **options)
        if action == "kill half":
            os.ftruncate(target, os.fstat(target).st_size // 2)
        if action == "killed after":
            original(target, *more, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, call, faulty)


def full_disk(limit: int) -> None:
    """No file may grow beyond ``limit`` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def at_step(step: int, signals: list[int]) -> None:
    """The process gets signals in the middle of the ``step``-th step it takes, trials included, counted from 1."""
    original: Callable[..., bool] = Trainer.step
    taken = 0

    def faulty(self: Trainer, stop: bool = False) -> bool:
        nonlocal taken
        taken += 1
        if taken == step:
            for number in signals:
                os.kill(os.getpid(), number)
        return original(self, stop)

    Trainer.step = faulty  # type: ignore[method-assign]


def slow(seconds: float) -> None:
    """Every step takes so much longer, so that a signal from outside comes in time."""
    original: Callable[..., bool] = Trainer.step

    def faulty(self: Trainer, stop: bool = False) -> bool:
        time.sleep(seconds)
        return original(self, stop)

    Trainer.step = faulty  # type: ignore[method-assign]


def in_measurement(epoch: int, signals: list[int]) -> None:
    """The same while the results of an epoch are measured."""
    original = Trainer.measure

    def faulty(self: Trainer) -> dict[str, Any]:
        if self.epoch + 1 == epoch:
            for number in signals:
                os.kill(os.getpid(), number)
        return original(self)

    Trainer.measure = faulty  # type: ignore[method-assign]


KINDS: dict[str, Callable[..., None]] = {
    "storage": storage,
    "full disk": full_disk,
    "step": at_step,
    "slow": slow,
    "measurement": in_measurement,
}
