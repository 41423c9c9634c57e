"""``bayesnorm reproduce``."""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import DivergedError
from ..paper import EXHIBITS, PRESETS, Lab, reproduce
from ..paper.reproduce import comparison, files_of
from ..train.events import Callback
from .options import Debug, Device
from .progress import shown
from .tables import console, new_table
from .world import choose_device


class Choice(enum.StrEnum):
    """Presets."""

    smoke = "smoke"
    digits = "digits"
    short = "short"
    paper = "paper"


def reproduce_(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Figures and tables, or all; --list names them.")
    ] = None,
    preset: Annotated[
        Choice, typer.Option(help="; ".join(f"{p.name}: {p.about}" for p in PRESETS.values()) + ".")
    ] = Choice.smoke,
    out: Annotated[
        Path | None, typer.Option(help="Folder of figures and runs. [default: paper-PRESET]", show_default=False)
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder of CIFAR-10 (`bayesnorm data cifar10` fetches it).")
    ] = None,
    cells: Annotated[Path | None, typer.Option("--cells-dir", help="Folder of the cell images.")] = None,
    device: Device = "auto",
    processes: Annotated[
        int | None,
        typer.Option(help="Runs that are trained at once. [default: 2, on a GPU 1]", min=1, show_default=False),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name everything that can be reproduced.")] = False,
    debug: Debug = False,
) -> None:
    """Reproduce figures and tables of the paper: train what they need, draw them, compare the numbers.

    Writes ID.svg, ID.png and ID.json (measured beside printed numbers) into --out. Runs are shared between figures and
    trained once; after an interruption the same command goes on.
    """
    screen = console()
    if list_:
        _list(screen)
        return
    if not ids:
        raise ValueError("reproduce what? Give ids or all; --list names them")
    chosen = list(EXHIBITS) if "all" in ids else list(dict.fromkeys(ids))
    unknown = [name for name in chosen if name not in EXHIBITS]
    if unknown:
        raise ValueError(f"unknown id {unknown[0]!r}: choose {', '.join(EXHIBITS)} or all")
    place = choose_device(device)
    folder = out or Path(f"paper-{preset.value}")

    def show(names: Any) -> AbstractContextManager[dict[str, Callback]]:
        return shown(screen, *names)

    at_once = processes or (1 if place.type == "cuda" else 2)
    lab = Lab(folder, PRESETS[preset.value], show, directory, cells, str(place), at_once)
    if any(EXHIBITS[name].cells for name in chosen):
        lab.place(cells=True)
    lab.train([run for name in chosen for run in EXHIBITS[name].wanted(lab.preset)])
    lost = [name for name in chosen if not _made(screen, name, lab)]
    if lost:
        raise DivergedError(f"{', '.join(lost)} could not be made, as runs diverged; delete their folders to try again")


def _made(screen: Console, name: str, lab: Lab) -> bool:
    """Make a figure, compare its numbers, say where it is; False if a run that it needs diverged."""
    try:
        document = reproduce(EXHIBITS[name], lab)
    except DivergedError as error:
        screen.print(f"{name}: {error}\n", highlight=False, soft_wrap=True)
        return False
    _compare(screen, document)
    files = ", ".join(str(path) for path in files_of(lab.out, name))
    screen.print(f"written: {files}\n", highlight=False, soft_wrap=True)
    return True


def _list(screen: Console) -> None:
    table = new_table()
    for name in ("id", "shows"):
        table.add_column(name)
    for found in EXHIBITS.values():
        table.add_row(found.id, found.title)
    screen.print(table)


def _compare(screen: Console, document: dict[str, Any]) -> None:
    """Measured numbers beside those of the paper."""
    title = f"{document['id']}: {document['title']} ({document['preset']})"
    # Not as the table's own title, which is broken into lines as narrow as the table.
    screen.print(title, style="italic", highlight=False, soft_wrap=True)
    table = new_table()
    table.add_column("", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("paper", justify="right")
    for name, measured, printed in comparison(document):
        table.add_row(name, _number(measured), _number(printed))
    screen.print(table)


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
