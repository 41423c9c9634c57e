"""Where trainers of equal form meet, so that their steps are taken by the same kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import torch

from .stack import Kind, Stack
from .step import take_step

if TYPE_CHECKING:
    from .trainer import FusedTrainer

TOGETHER = 10
"""Steps in a graph: between two graphs the device waits for the host."""
WARM_UP = 2


class Dock:
    """Trainers that take their steps together when their convolutions are the same and they ask for the same.

    A trainer asks for steps; all that was asked for is sent off as soon as one of them needs the result.
    """

    def __init__(self) -> None:
        self.members: list[FusedTrainer] = []
        self.asked: list[FusedTrainer] = []

    def add(self, trainer: FusedTrainer) -> None:
        """One more."""
        self.members.append(trainer)

    def remove(self, trainer: FusedTrainer) -> None:
        """One that has ended, well or not."""
        for trainers in (self.members, self.asked):
            if trainer in trainers:
                trainers.remove(trainer)

    def ask(self, trainer: FusedTrainer) -> None:
        """For the steps that the trainer has begun."""
        self.asked.append(trainer)
        if len(self.members) == 1:
            self.flush()

    def flush(self) -> None:
        """Send off what was asked for."""
        asked, self.asked = self.asked, []
        for together in _grouped(asked, lambda trainer: trainer.form):
            self._seat(together)
        for group in _grouped(asked, lambda trainer: (id(trainer.bench), trainer.wanted)):
            assert group[0].bench is not None
            group[0].bench.run(group, *group[0].wanted)

    def _seat(self, trainers: list[FusedTrainer]) -> None:
        """Put trainers of one form at one bench, unless they sit at one whose seats are not mostly empty."""
        # Others of the form that ask for nothing are in the middle of something, and stay where they are.
        all_asked = len(trainers) == sum(trainer.form == trainers[0].form for trainer in self.members)
        if not (all_asked and _are_scattered(trainers)):
            trainers = [trainer for trainer in trainers if trainer.bench is None]
        if trainers:
            Bench(trainers)


def _are_scattered(trainers: list[FusedTrainer]) -> bool:
    """Whether they do not sit at one bench, or at one with at least half of its seats empty."""
    bench = trainers[0].bench
    if bench is None or any(trainer.bench is not bench for trainer in trainers):
        return True
    return 2 * len(trainers) <= bench.stack.models


def _grouped(trainers: list[FusedTrainer], key: Callable[[FusedTrainer], Hashable]) -> list[list[FusedTrainer]]:
    """Those of one key together, in the order in which they came."""
    groups: dict[Hashable, list[FusedTrainer]] = {}
    for trainer in trainers:
        groups.setdefault(key(trainer), []).append(trainer)
    return list(groups.values())


class Bench:
    """A stack at work for its trainers: its graphs, and the stream on which they run."""

    def __init__(self, trainers: list[FusedTrainer]) -> None:
        kinds: list[Kind] = []
        seats: list[FusedTrainer] = []
        for alike in _grouped(trainers, lambda trainer: trainer.kind):
            some = alike[0]
            optimizer = (some.config.momentum, some.config.clip)
            kinds.append(Kind(some.chain, some.layout, some.rows, *optimizer, len(seats), len(alike)))
            seats += alike
        self.stack = Stack(kinds, trainers[0].common)
        self.device = self.stack.device
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.done = torch.cuda.Event() if self.stream is not None else None
        self.graphs: dict[tuple[int, int], Callable[[], None]] = {}
        for number, trainer in enumerate(seats):
            if self.stream is not None:
                trainer.wait(torch.cuda.current_stream(self.device))
            trainer.sit(self, number)
        if self.stream is not None:
            # What the trainers leave behind is free for others on other streams: nothing may still be read there.
            torch.cuda.synchronize(self.device)

    def run(self, trainers: list[FusedTrainer], count: int, size: int) -> None:
        """So many steps of these trainers, with batches of this size."""
        working = [0] * self.stack.models
        for trainer in trainers:
            working[trainer.number] = 1
        if self.stream is None:
            self.stack.active.copy_(torch.tensor(working))
            for _ in range(count):
                take_step(self.stack, size)
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        for trainer in trainers:
            trainer.wait(self.stream)
        with torch.cuda.stream(self.stream):
            self.stack.active.copy_(torch.tensor(working))
            for together, times in ((TOGETHER, count // TOGETHER), (1, count % TOGETHER)):
                for _ in range(times):
                    self._graph(size, together)()
            assert self.done is not None
            self.done.record(self.stream)

    def _graph(self, size: int, together: int) -> Callable[[], None]:
        if (size, together) not in self.graphs:
            self.graphs[size, together] = self._captured(size, together)
        return self.graphs[size, together]

    def _captured(self, size: int, together: int) -> Callable[[], None]:
        """Steps as a graph; what the warm-up changed is put back."""
        stack = self.stack
        before = [(tensor, tensor.clone()) for tensor in stack.changing]
        for _ in range(WARM_UP):
            take_step(stack, size)
            stack.place.copy_(before[2][1])
        for tensor, value in before:
            tensor.copy_(value)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(together):
                take_step(stack, size)
        return graph.replay
