"""Numbers as a reader wants them, and axes for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "\N{EN DASH}"
INFINITE = "\N{INFINITY}"


def number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def finite(values: Iterable[Any]) -> list[float]:
    """Those that are finite numbers."""
    return [found for value in values if (found := number(value)) is not None]


def show(value: float | None, kind: str = "number") -> str:
    """A value in words.

    Arguments:
        value: None is a dash.
        kind: "percent", "count" or "number" (four significant digits).

    >>> show(0.0406349), show(12345, "count"), show(None)
    ('0.04063', '12,345', '–')
    """
    if value is None:
        return MISSING
    if kind == "percent":
        return f"{100 * value:.2f}\N{NO-BREAK SPACE}%"
    return f"{value:,.0f}" if kind == "count" else f"{value:.4g}"


def rounded(value: float | None) -> float | None:
    """Five significant digits, for data that is shown with four."""
    return None if value is None else float(f"{value:.5g}")


@dataclass(frozen=True)
class Axis:
    """One direction of a chart.

    Arguments:
        label: what it measures.
        low, high: its ends.
        ticks: where it has numbers.
        kind: how values are written, see :func:`show`.
        log: whether it is logarithmic.
    """

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    kind: str = "number"
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, 0 at the low and 1 at the high end.

        >>> Axis("nll", 0.01, 1.0, (), log=True).place(0.1)
        0.5
        """
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def drawable(self, value: float | None) -> bool:
        """Whether a value has a place: a logarithmic axis has none for 0."""
        return value is not None and (value > 0 or not self.log)

    def tick(self, value: float) -> str:
        """A tick in words."""
        if self.kind == "percent":
            return f"{100 * value:.6g}%"
        return f"{value:,.0f}" if self.kind == "count" and value >= 1 else f"{value:.6g}"


def linear(
    label: str, values: Sequence[float], kind: str = "number", low: float | None = None, high: float | None = None
) -> Axis:
    """An axis that begins and ends just beyond the values, or where it is told to."""
    least, most = min(values, default=0.0), max(values, default=1.0)
    room = 0.04 * (most - least) or 0.04 * abs(most) or 0.5
    bottom = least - room if low is None else low
    top = most + room if high is None else high
    if not bottom < top:
        top = bottom + 1.0
    return Axis(label, bottom, top, linear_ticks(bottom, top), kind)


def linear_ticks(low: float, high: float, wanted: int = 6) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten, at most ``wanted``.

    >>> linear_ticks(0.0, 50.0)
    (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)
    """
    unit = 10.0 ** math.floor(math.log10((high - low) / wanted))
    steps = (unit * factor for factor in (1, 2, 5, 10, 20))
    slack = 1e-9 * (high - low)
    for step in steps:
        first, last = math.ceil((low - slack) / step), math.floor((high + slack) / step)
        if last - first + 1 <= wanted:
            break
    return tuple(float(f"{index * step:.12g}") for index in range(first, last + 1))


def logarithmic(label: str, values: Sequence[float], kind: str = "number") -> Axis:
    """A logarithmic axis over the positive values; a linear one where there is none."""
    positive = [value for value in values if value > 0]
    if not positive:
        return linear(label, [], kind)
    low, high = min(positive), max(positive)
    room = (high / low) ** 0.04 if high > low else 1.5
    low, high = low / room, high * room
    return Axis(label, low, high, log_ticks(low, high), kind, log=True)


def log_ticks(low: float, high: float, wanted: int = 8) -> tuple[float, ...]:
    """Round numbers between two positive ones, as many as are easily read.

    >>> log_ticks(0.009, 1.2)
    (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [float(f"{factor}e{power}") for power in decades for factor in factors]
        ticks = tuple(value for value in found if low <= value <= high)
        if len(ticks) <= wanted:
            break
    if len(ticks) > wanted:
        ticks = ticks[:: math.ceil(len(ticks) / wanted)]
    return ticks if len(ticks) > 1 else linear_ticks(low, high)
