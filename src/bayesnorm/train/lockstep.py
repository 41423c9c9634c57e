"""Trainers that go step by step together on one device, each as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import DivergedError
from .trainer import Trainer

Name = TypeVar("Name")
Result = TypeVar("Result")

Pieces = Generator[bool, None, Result]
"""Work in pieces, for several side by side: False where steps are about to begin, True where they are under way."""


def drained(pieces: Pieces[Result], after: Callable[[], None] = lambda: None) -> Result:
    """The result of work that is alone; ``after`` is called after each piece."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Result = end.value
            return result
        after()


class Turn:
    """One of several at work: on a stream of its own, with torch's generators as it left them.

    At the end of a turn the caller's stream and generators are put back.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.mine: Tensor | None = None
        self.drawn: torch.Generator | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.stream is not None:  # network and data were made on another
            self.stream.wait_stream(torch.cuda.current_stream(device))

    def __enter__(self) -> None:
        self.outer = torch.get_rng_state()
        if self.mine is not None:
            torch.set_rng_state(self.mine)
        if self.stream is not None:
            self.before = torch.cuda.current_stream(self.device)
            torch.cuda.set_stream(self.stream)
            self._take_generator()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            torch.cuda.set_stream(self.before)
            self._generator().graphsafe_set_state(self.lent)
        self.mine = torch.get_rng_state()
        torch.set_rng_state(self.outer)

    def wait(self) -> None:
        """Until everything that was begun is done, on whatever stream."""
        if self.stream is not None:
            torch.cuda.synchronize(self.device)

    def _take_generator(self) -> None:
        """Put another state into torch's generator. Graphs read it on the device, so copying numbers is not enough."""
        generator = self._generator()
        self.lent = generator.graphsafe_get_state()
        if self.drawn is None:
            self.drawn = generator.clone_state()
        generator.graphsafe_set_state(self.drawn)

    def _generator(self) -> torch.Generator:
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        return torch.cuda.default_generators[index]


def stepping(
    trainers: dict[Name, Trainer],
    turns: Mapping[Name, Turn],
    stepped: Callable[[Name, Trainer], bool],
    diverged: Callable[[Name, DivergedError], None],
    stopping: Callable[[], bool] = lambda: False,
    stopped: Callable[[Name, Trainer], None] = lambda name, trainer: None,
) -> Pieces[None]:
    """Begin the steps of all, then look at each: while one is looked at, those of the others go on.

    Arguments:
        trainers: by name; each leaves when it is done, and is released then.
        turns: of each trainer, the one in which it was made.
        stepped: called when a trainer has taken its steps, in its turn; returns whether it goes on.
        diverged: called when a trainer leaves because it diverged, in its turn.
        stopping: asked at every step whether to stop.
        stopped: called with each trainer that is left when they stop, in its turn.

    Raises:
        InterruptedError: some process wanted to stop; whatever had begun was finished first.
    """
    try:
        while trainers:
            yield False
            for name, trainer in trainers.items():
                with turns[name]:
                    trainer.begin()
            yield True
            wishes = [_look(name, trainers, turns[name], stepped, diverged, stopping) for name in list(trainers)]
            if any(wishes):
                for name, trainer in trainers.items():
                    with turns[name]:
                        stopped(name, trainer)
                raise InterruptedError
    finally:
        for name in list(trainers):
            turns[name].wait()  # after an error steps may be under way: their memory must not go to others
            _leave(name, trainers, turns[name])


def _look(
    name: Name,
    trainers: dict[Name, Trainer],
    turn: Turn,
    stepped: Callable[[Name, Trainer], bool],
    diverged: Callable[[Name, DivergedError], None],
    stopping: Callable[[], bool],
) -> bool:
    """End the steps of one; returns whether some process wants to stop."""
    wish, failed = False, None
    with turn:
        try:
            wish = trainers[name].step(stopping())
        except DivergedError as error:
            failed = error
        if failed is not None:
            diverged(name, failed)
        goes_on = failed is None and stepped(name, trainers[name])
    if not goes_on:
        _leave(name, trainers, turn)
    return wish


def _leave(name: Name, trainers: dict[Name, Trainer], turn: Turn) -> None:
    with turn:
        trainers.pop(name).release()
