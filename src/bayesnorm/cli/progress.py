"""What a person sees while a network trains: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from ..train.events import Callback, EpochEnded, Event, Record, Started, Stepped, Tried, Trying
from .world import is_first


@contextmanager
def shown(console: Console, *titles: str) -> Iterator[dict[str, Callback]]:
    """A callback per title that shows progress; only the first of several processes shows it."""
    if not is_first():
        yield {title: lambda event: None for title in titles}
    elif console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            BarColumn(8),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        with Progress(*columns, console=console, transient=True, expand=True) as bar:
            yield {title: _Live(bar, title) for title in titles}
    else:
        yield {title: _Lines(console, title) for title in titles}


class _Live:
    """One line that changes: epoch, loss, validation, steps per second, time left."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar, self.title = bar, title
        self.task = bar.add_task(title, total=None, rate="", visible=not title)
        self.start = Started.__new__(Started)
        self.begin, self.validation = time.monotonic(), ""
        self.trying: dict[int, Trying] = {}
        self.tried: set[int] = set()

    def __call__(self, event: Event) -> None:
        self.bar.update(self.task, visible=True)
        if isinstance(event, Trying):
            self.trying[event.trial] = event
            self._search(event.trials)
        elif isinstance(event, Tried):
            self.trying.pop(event.trial, None)
            self.tried.add(event.trial)
            self._search(event.trials)
        elif isinstance(event, Started):
            self.start, self.begin = event, time.monotonic()
            self.bar.reset(self.task, total=event.epochs * event.steps_per_epoch, completed=event.step)
        elif isinstance(event, Stepped):
            epoch = min((event.step - 1) // self.start.steps_per_epoch + 1, self.start.epochs)
            rate = (event.step - self.start.step) / max(1e-9, time.monotonic() - self.begin)
            text = f"{self.title} epoch {epoch}/{self.start.epochs} loss {event.loss:.4f}{self.validation}"
            self.bar.update(self.task, description=text, completed=event.step, rate=f"{rate:.0f} steps/s")
        elif isinstance(event, EpochEnded):
            self.validation = _validation(event.record, self.validation)

    def _search(self, trials: int) -> None:
        """Where the search is; trials that are under way together share the line."""
        done = len(self.tried) + sum(event.done for event in self.trying.values())
        self.bar.update(self.task, total=trials, completed=done)
        if self.trying:
            text = _under_way([self.trying[number] for number in sorted(self.trying)])
            self.bar.update(self.task, description=f"{self.title} {text}")


class _Lines:
    """A line per trial and per epoch, with the time left where that is minutes; of many epochs about 50."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, f"{title}: " if title else ""
        self.every = self.epochs = 1
        self.first, self.last, self.begin = 0, 0, time.monotonic()
        self.validation = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Tried):
            line = f"learning rate {event.lr:.3g} ({event.trial}/{event.trials}): loss {event.loss:.4f}"
        elif isinstance(event, Started):
            self.every, self.epochs = max(1, event.epochs // 50), event.epochs
            self.first, self.last = event.step, event.epochs * event.steps_per_epoch
            self.begin = time.monotonic()
            line = f"{event.epochs} epochs of {event.steps_per_epoch} steps, learning rate {event.lr:.3g}"
            line += f", from step {event.step}" if event.step else ""
        elif isinstance(event, EpochEnded):
            record = event.record
            self.validation = _validation(record, self.validation)
            if not self._shows(record["epoch"]):
                return
            line = f"epoch {record['epoch']}/{self.epochs} loss {record['train_loss']:.4f}{self.validation}"
            line += self._left(record["step"])
        else:
            return
        self.console.print(self.title + line, highlight=False, soft_wrap=True)

    def _left(self, step: int) -> str:
        """At the pace since the start, to the minute."""
        seconds = (time.monotonic() - self.begin) / max(1, step - self.first) * (self.last - step)
        minutes = round(seconds / 60)
        return f" | {minutes} min left" if minutes else ""

    def _shows(self, epoch: int) -> bool:
        return epoch % self.every == 0 or epoch == self.epochs


def _under_way(events: list[Trying]) -> str:
    """One trial, or the best so far of several."""
    first, last, best = events[0], events[-1], min(events, key=lambda event: event.loss)
    text = f"learning rate {best.lr:.3g}, loss {best.loss:.4f}"
    if len(events) == 1:
        return f"trial {first.trial}/{first.trials}: {text}"
    return f"trials {first.trial}-{last.trial}/{first.trials}: best {text}"


def _validation(record: Record, before: str) -> str:
    """The last validation, with its epoch where it is not that of the record."""
    if "val_nll" not in record:
        return before if not before or "(epoch" in before else f"{before} (epoch {record['epoch'] - 1})"
    nll = record["val_nll"]
    return f" | val {100 * record['val_accuracy']:.2f} %, NLL {'inf' if nll is None else f'{nll:.4f}'}"
