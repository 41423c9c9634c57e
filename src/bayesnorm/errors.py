"""Errors that end a run; each says what is wrong, where, and what to do, and has its own exit code."""

from __future__ import annotations

import torch


class BayesnormError(ValueError):
    """Something the user can put right. The command line prints its message and exits with ``exit_code``."""

    exit_code = 1


class DataError(BayesnormError):
    """Data that is missing, damaged or not what it should be."""


class RunError(BayesnormError):
    """A run folder that cannot be used as asked."""


class DivergedError(BayesnormError):
    """A loss or a gradient is not finite; the step was not taken."""

    exit_code = 3


class StoppedError(BayesnormError):
    """Stopped by a signal or a time limit after a finished step; the run can be resumed.

    Arguments:
        signal: number of the signal, of a time limit that of SIGTERM; the exit code is 128 + that, as a shell reports
            it.
        why: what stopped it, in words.
    """

    def __init__(self, message: str, signal: int, why: str | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        self.why = why or f"stopped by signal {signal}"
        self.exit_code = 128 + signal


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the machine, had no room for a tensor: torch says the latter by a plain RuntimeError.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
