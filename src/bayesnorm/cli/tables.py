"""Results as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ..evaluate.metrics import Metrics

WIDE = 120
"""Columns where the output goes into a file."""


def console() -> Console:
    """Where tables and messages go."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


def new_table(title: str | None = None) -> Table:
    """A table in the style of all of them, narrow enough for 80 columns."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)


def evaluation_table(rows: dict[str, dict[str, Metrics]], title: str) -> Table:
    """Accuracy, NLL by each way of predicting, calibration error: a row per method, the best in bold."""
    ways = sorted(
        {way for found in rows.values() for way in found}, key=lambda way: int(way[2:]) if way != "single" else 0
    )
    table = new_table(title)
    table.add_column("method", no_wrap=True)
    shown = list(dict.fromkeys([ways[0], ways[-1]]))
    names = [*[_title("NLL", way) for way in ways], *[_title("ECE", way) for way in shown]]
    for name in ("accuracy", *names):
        table.add_column(name, justify="right", no_wrap=True)
    cells = [_numbers(found, ways, shown) for found in rows.values()]
    best = [_best([row[i] for row in cells], highest=i == 0) if len(rows) > 1 else None for i in range(1 + len(names))]
    for name, row in zip(rows, cells, strict=True):
        table.add_row(name, *[_shown(v, i, v is not None and v == best[i]) for i, v in enumerate(row)])
    return table


def _title(name: str, way: str) -> str:
    return name if way == "single" else f"{name}-{way[2:]}"


def _numbers(found: dict[str, Metrics], ways: Sequence[str], shown: Sequence[str]) -> list[float | None]:
    nlls = [found[way].nll if way in found else None for way in ways]
    eces = [found[way].ece if way in found else None for way in shown]
    return [found["single"].accuracy, *nlls, *eces]


def _best(values: Sequence[float | None], highest: bool) -> float | None:
    known = [value for value in values if value is not None]
    return (max(known) if highest else min(known)) if known else None


def _shown(value: float | None, column: int, best: bool) -> str:
    if value is None:
        return "-"
    text = f"{100 * value:.2f} %" if column == 0 else f"{value:.4f}"
    return f"[bold]{text}[/bold]" if best else text


def scales_table(ratios: dict[str, dict[str, float]]) -> Table:
    """Learned sigma/s per layer: a row per method."""
    table = new_table("learned sigma/s per layer, mean over channels")
    most = max(len(found) for found in ratios.values())
    if most > 12:
        return _transposed(table, ratios)
    table.add_column("method", no_wrap=True)
    for index in range(most):
        table.add_column(str(index + 1), justify="right", no_wrap=True)
    for name, found in ratios.items():
        table.add_row(name, *[_short(value) for value in found.values()])
    return table


def _short(value: float) -> str:
    """Two digits, without the 0 before the point: nine layers fit into a line."""
    return f"{value:.2g}".removeprefix("0") or "0"


def _transposed(table: Table, ratios: dict[str, dict[str, float]]) -> Table:
    """Layers by their names, one below the other."""
    table.add_column("layer", no_wrap=True)
    for name in ratios:
        table.add_column(name, justify="right")
    for layer in dict.fromkeys(layer for found in ratios.values() for layer in found):
        table.add_row(layer, *[_short(found[layer]) if layer in found else "-" for found in ratios.values()])
    return table
