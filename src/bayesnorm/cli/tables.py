"""Results as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..evaluate.ood import Separation
from ..evaluate.panel import Measures

WIDE = 120
"""Columns where the output goes into a file."""


def console() -> Console:
    """Where tables and messages go; brackets in the name of a run are brackets."""
    return Console(markup=False, width=None if sys.stdout.isatty() else WIDE)


def new_table(title: str | None = None) -> Table:
    """A table in the style of all of them, narrow enough for 80 columns."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)


HUGE = 1e4
"""From here on, as of a network that has diverged, a number is written with an exponent."""
COLUMNS: dict[str, tuple[str, str]] = {
    "accuracy": ("accuracy", "{:.2%}"),
    "nll": ("NLL", "{:.4f}"),
    "calibrated_nll": ("NLL/T", "{:.4f}"),
    "temperature": ("T", "{:.2f}"),
    "brier": ("Brier", "{:.3f}"),
    "ece": ("ECE", "{:.3f}"),
    "aurc": ("AURC", "{:.4f}"),
}
"""Measures that are shown, with title and format; the rest is in the file."""
OF_PIXELS: dict[str, tuple[str, str]] = {
    "accuracy": COLUMNS["accuracy"],
    "nll": COLUMNS["nll"],
    "iou": ("IoU", "{:.3f}"),
    "dice": ("Dice", "{:.3f}"),
    "seg": ("SEG", "{:.3f}"),
    "ece": COLUMNS["ece"],
    "aurc": COLUMNS["aurc"],
}
"""The same of segmentations."""
HIGHER = ("accuracy", "iou", "dice", "seg")
"""Measures of which more is better."""


def evaluation_table(rows: dict[str, dict[str, Measures]], title: str) -> Table:
    """A row per method and way of predicting; the best of each column in bold."""
    lines = [(method, way, found[way]) for method, found in rows.items() for way in sorted(found, key=_order)]
    columns = COLUMNS if all(found.iou is None for _, _, found in lines) else OF_PIXELS
    table = new_table(title)
    table.add_column("method", overflow="fold")
    table.add_column("by", no_wrap=True)
    for name, _ in columns.values():
        table.add_column(name, justify="right", no_wrap=True)
    best = {name: _best([getattr(found, name) for _, _, found in lines], name) for name in columns}
    before = None
    for method, way, found in lines:
        cells = [_shown(getattr(found, name), name, best[name] if len(lines) > 1 else None) for name in columns]
        table.add_row(method if method != before else "", _by(way), *cells)
        before = method
    return table


def _order(way: str) -> tuple[bool, int, str]:
    """Single pass and moments first, then by the number of draws."""
    draws = way.removeprefix("mc")
    return (draws.isdigit(), int(draws) if draws.isdigit() else -(way == "single"), way)


def _by(way: str) -> str:
    """A way of predicting in short.

    >>> _by("mc30"), _by("moments")
    ('MC-30', 'moments')
    """
    return f"MC-{way[2:]}" if way.startswith("mc") else way


def _best(values: Sequence[float | None], name: str) -> float | None:
    known = [value for value in values if value is not None]
    if name == "temperature" or not known:
        return None
    return max(known) if name in HIGHER else min(known)


def _shown(value: float | None, name: str, best: float | None) -> str | Text:
    if value is None:
        return "-"
    text = {**COLUMNS, **OF_PIXELS}[name][1].format(value).replace("%", " %") if value < HUGE else f"{value:.1e}"
    return Text().append(text, "bold") if value == best else text


def separation_table(found: dict[str, Separation], title: str) -> Table:
    """How well each score of uncertainty tells two kinds of images apart."""
    table = new_table(title)
    table.add_column("by", no_wrap=True)
    for name in ("AUROC", "AUPR in", "AUPR out", "FPR at 95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, separation in found.items():
        table.add_row(name, *[f"{value:.4f}" for value in separation])
    return table


def scales_table(ratios: dict[str, dict[str, float]]) -> Table:
    """Learned sigma/s per layer: a row per method."""
    table = new_table("learned sigma/s per layer, mean over channels")
    most = max(len(found) for found in ratios.values())
    if most > 12:
        return _transposed(table, ratios)
    table.add_column("method", overflow="fold")
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
