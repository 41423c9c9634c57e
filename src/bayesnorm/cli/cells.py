"""``bayesnorm cells-table``."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..paper.cells_table import cells_table
from ..report.drawing import replace
from .options import Debug
from .output import refuse_unfit
from .tables import console, new_table

SHOWN = {
    "nll": ("NLL", "{:.3f}"),
    "nll_mc30": ("MC-30", "{:.3f}"),
    "accuracy": ("accuracy", "{:.1%}"),
    "iou": ("IoU", "{:.3f}"),
    "seg": ("SEG", "{:.3f}"),
}


def table(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs on the cells.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file.")] = Path("results/cells/table.json"),
    debug: Debug = False,
) -> None:
    """Runs on the cells as one table: a row per method, a number per run, paired tests of the paper's best."""
    refuse_unfit("--out", out)
    document = cells_table(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace(out, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    screen = console()
    screen.print(_rows(document["rows"]))
    comparisons = _comparisons(document["comparisons"])
    if comparisons.row_count:
        screen.print(comparisons)
    screen.print(str(out), highlight=False, soft_wrap=True)


def _rows(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean over the runs, with the std where there are several."""
    made = new_table("validation frames, mean and std over splits and seeds")
    for name in ("method", "splits", "epochs", *[title for title, _ in SHOWN.values()]):
        made.add_column(name, justify="left" if name in ("method", "splits") else "right", no_wrap=True)
    for row in rows:
        made.add_row(
            _named(row["method"], row["apart"]),
            _splits(row["splits"]),
            str(row["epochs"]),
            *[_mean(row[k], form) for k, (_, form) in SHOWN.items()],
        )
    return made


def _named(method: str, apart: dict[str, Any]) -> str:
    """A method, with the settings that tell its rows apart on lines of their own; epochs have a column."""
    return "\n".join([method, *(f"  {name}={value}" for name, value in apart.items() if name != "epochs")])


def _splits(splits: Sequence[int | str]) -> str:
    """Each once, with the number of its seeds where there are several.

    >>> _splits([0, 1, 1])
    '0,1 x2'
    """
    counts = Counter(splits)
    return ",".join(f"{split} x{count}" if count > 1 else str(split) for split, count in counts.items())


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {form.format(statistics.stdev(known))}" if len(known) > 1 else ""
    return f"{form.format(statistics.fmean(known))}{spread}"


def _comparisons(rows: Sequence[dict[str, Any]]) -> Table:
    """Those with a p value: a line for the two of one pass and of what predicts best."""
    made = new_table("NLL minus that of another, by one pass and by what predicts best, paired by split and seed")
    for name in ("method", "than", "splits", "epochs", "one pass", "p", "best", "p"):
        made.add_column(name, justify="left" if name in ("method", "than", "splits") else "right", no_wrap=True)
    for single, best in zip(rows[::2], rows[1::2], strict=True):
        if single["p"] is None or best["p"] is None:
            continue
        theirs = {name: value for name, value in single["than_apart"].items() if single["apart"].get(name) != value}
        pair = _named(single["method"], single["apart"]), _named(single["than"], theirs)
        numbers = [word for row in (single, best) for word in (f"{row['difference']:+.4f}", f"{row['p']:.3g}")]
        made.add_row(*pair, _splits(single["splits"]), str(single["epochs"]), *numbers)
    return made
