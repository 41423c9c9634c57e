"""``bayesnorm reproduce``."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import DivergedError
from ..paper import EXHIBITS, PRESETS, Lab, Preset, reproduce
from ..paper.reproduce import comparison, files_of
from ..paper.rows import METHODS
from ..train.events import Callback
from ..train.job import refuse_late
from .options import Debug, Device, StopAfter, deadline, read_settings
from .progress import shown
from .tables import console, new_table
from .world import choose_device

REMEDY = "they would again: try another --set lr=NUMBER or --set clip=NUMBER"
"""Runs are deterministic."""


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
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs, or of records of them. [default: OUT/runs]", show_default=False),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder of CIFAR-10 (`bayesnorm data cifar10` fetches it).")
    ] = None,
    cells: Annotated[Path | None, typer.Option("--cells-dir", help="Folder of the cell images.")] = None,
    device: Device = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of `bayesnorm train` instead of the preset's, as in epochs=40; of one method alone as in "
            "batch+projection:lr=0.1. May be repeated. Such runs have folders of their own, their figures are in "
            "--out/NAME=VALUE,...",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,...",
            help="Seeds of the rows of table1.json and of the runs of figA2, as in 0,1,2. [default: 0; figA2: 0,1,2]",
        ),
    ] = None,
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="All eleven methods in table1.json, not only the five of the table.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Processes that train runs, each on its own. [default: 2; on a GPU there is a fleet]",
            min=1,
            show_default=False,
        ),
    ] = None,
    fleet: Annotated[
        bool | None,
        typer.Option(
            "--fleet/--no-fleet",
            help="Train runs that wait for no other side by side in this process. [default: on a GPU]",
            show_default=False,
        ),
    ] = None,
    stop_after: StopAfter = None,
    list_: Annotated[bool, typer.Option("--list", help="Name everything that can be reproduced.")] = False,
    debug: Debug = False,
) -> None:
    """Reproduce figures and tables of the paper: train what they need, draw them, compare the numbers.

    Writes ID.svg, ID.png and ID.json (measured beside printed numbers) into --out. Runs are shared between figures and
    trained once; after an interruption the same command goes on. table1.json also has a row per method that is trained,
    with the seeds of --seeds.
    """
    stop_at = deadline(stop_after)
    screen = console()
    if list_:
        _list(screen)
        return
    if not ids:
        raise ValueError("reproduce what? Give ids or all; --list names them")
    unknown = [name for name in ids if name not in (*EXHIBITS, "all")]
    if unknown:
        raise ValueError(f"unknown id {unknown[0]!r}: choose {', '.join(EXHIBITS)} or all")
    chosen = list(EXHIBITS) if "all" in ids else list(dict.fromkeys(ids))
    protocol = _protocol(PRESETS[preset.value], chosen, settings or [], seeds, all_methods)
    place = choose_device(device)
    folder = out or Path(f"paper-{preset.value}")
    if fleet and processes is not None:
        raise ValueError("--fleet trains in this process: leave --processes out")

    def show(names: Any) -> AbstractContextManager[dict[str, Callback]]:
        return shown(screen, *names)

    lab = Lab(
        folder / protocol.tag,
        protocol,
        show,
        directory,
        cells,
        str(place),
        processes or (1 if place.type == "cuda" else 2),
        runs or folder / "runs",
        fleet if fleet is not None else place.type == "cuda" and processes is None,
        stop_at,
    )
    if any(EXHIBITS[name].cells and not EXHIBITS[name].wanted(protocol) for name in chosen):
        lab.place(cells=True)
    also = [run for name in chosen for run in EXHIBITS[name].also(protocol)]
    lab.train([*(run for name in chosen for run in EXHIBITS[name].wanted(protocol)), *also])
    lost = [name for name in chosen if not _made(screen, name, lab)]
    partial = [run for name in chosen if EXHIBITS[name].partial for run in EXHIBITS[name].wanted(protocol)]
    diverged = [run.name(protocol) for run in dict.fromkeys([*also, *partial]) if lab.lost(run) is not None]
    if lost:
        raise DivergedError(f"{', '.join(lost)} could not be made, as runs diverged; {REMEDY}")
    if diverged:
        raise DivergedError(f"{', '.join(diverged)} diverged, as the .json says: no numbers; {REMEDY}")


def _protocol(
    preset: Preset, chosen: Sequence[str], settings: Sequence[str], seeds: str | None, all_methods: bool
) -> Preset:
    """The preset with what was asked for instead, or besides."""
    if settings:
        preset = preset.changed(read_settings(settings))
    if all_methods and "table1" not in chosen:
        raise ValueError("--all-methods is for table1: name it too, or leave it out")
    if all_methods:
        preset = replace(preset, table_methods=METHODS)
    return preset if seeds is None else _with_seeds(preset, chosen, seeds)


def _with_seeds(preset: Preset, chosen: Sequence[str], seeds: str) -> Preset:
    """Those of the table and of figure A2, whose first is always 0: the others have its learning rate."""
    if not {"table1", "figA2"} & {*chosen}:
        raise ValueError("--seeds is for table1 and figA2: name one of them too, or leave it out")
    words = seeds.split(",")
    if not all(re.fullmatch(r"\s*\d{1,18}\s*", word) for word in words):
        raise ValueError(f"--seeds {seeds}: give whole numbers as in 0,1,2")
    numbers = tuple(dict.fromkeys(int(word) for word in words))
    if "figA2" in chosen and not {*numbers} - {0}:
        raise ValueError(f"--seeds {seeds}: figA2 compares seed 0 with others; give more as in 0,1, or leave figA2 out")
    return replace(preset, table_seeds=numbers, seeds=tuple(dict.fromkeys((0, *numbers))))


def _made(screen: Console, name: str, lab: Lab) -> bool:
    """Make a figure, compare its numbers, say where it is; False if a run that it needs diverged."""
    refuse_late(lab.stop_at)
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
