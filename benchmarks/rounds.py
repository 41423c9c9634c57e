"""How things are timed: interleaved rounds, medians, peak memory.

A *work* is something that can be called and says how much it has done: steps, or predictions (a third, if it made 10 of
30 passes). Its time is that of one unit.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Read by torch's profiler when it is loaded; else it writes a line whenever it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch.profiler import ProfilerActivity, profile

MIB = 2**20
Work = Callable[[], float]


def repeated(call: Callable[[], object], count: int) -> Work:
    """The same thing so many times in a row."""

    def work() -> float:
        for _ in range(count):
            call()
        return count

    return work


def seconds(work: Work, device: torch.device) -> float:
    """Time of one unit of the work, from an idle device to an idle device."""
    wait(device)
    start = time.perf_counter()
    done = work()
    wait(device)
    return (time.perf_counter() - start) / done


def wait(device: torch.device) -> None:
    """Until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(works: Mapping[str, Work], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each work in each round; every round begins with another one."""
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for i in range(rounds):
        first = i % max(1, len(names))
        for name in names[first:] + names[:first]:
            times[name].append(seconds(works[name], device))
    return times


def milliseconds(times: Sequence[float], digits: int = 3) -> float:
    """Median."""
    return round(1e3 * statistics.median(times), digits)


def ratio(times: Sequence[float], base: Sequence[float] | None) -> float | None:
    """Median over the rounds of the ratio of two works in the same round; None without a base."""
    if base is None:
        return None
    return round(statistics.median(mine / other for mine, other in zip(times, base, strict=True)), 3)


@dataclass
class Peak:
    """Most memory at one time, in MiB, of what was made and done inside :func:`peak`.

    Arguments:
        allocated: by tensors.
        reserved: CUDA: taken from the device by torch, CUDA graphs included.
        driver: CUDA: by which the free memory of the device has shrunk.
    """

    allocated: float = 0.0
    reserved: float | None = None
    driver: float | None = None


@contextmanager
def peak(device: torch.device) -> Iterator[Peak]:
    """Memory that the block needs beyond what was there before; it is known when the block ends."""
    found = Peak()
    gc.collect()
    with _on_cuda(found, device) if device.type == "cuda" else _on_cpu(found):
        yield found


@contextmanager
def _on_cuda(found: Peak, device: torch.device) -> Iterator[None]:
    wait(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), torch.cuda.mem_get_info(device)[0]
    yield
    wait(device)
    found.allocated = round((torch.cuda.max_memory_allocated(device) - before[0]) / MIB, 1)
    found.reserved = round((torch.cuda.max_memory_reserved(device) - before[1]) / MIB, 1)
    found.driver = round((before[2] - torch.cuda.mem_get_info(device)[0]) / MIB, 1)


@contextmanager
def _on_cpu(found: Peak) -> Iterator[None]:
    """Torch has no such counter on a CPU; its profiler notes every allocation of a tensor."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        yield
    assert record.profiler is not None
    events = record.profiler.kineto_results.events()
    now = most = 0
    for _, size in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        now += size
        most = max(most, now)
    found.allocated = round(most / MIB, 1)
