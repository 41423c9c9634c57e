"""``bayesnorm data``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..data.base import Data
from ..train import Recipe
from .options import Debug
from .tables import console


class Name(enum.StrEnum):
    """Data sets."""

    digits = "digits"
    cifar10 = "cifar10"
    cells = "cells"
    folder = "folder"


def data(
    name: Annotated[Name, typer.Argument(help="Which data set.")],
    directory: Annotated[Path | None, typer.Option("--dir", help="Where its files are, or are to go.")] = None,
    debug: Debug = False,
) -> None:
    """Download CIFAR-10 or verify what is there; read and check any other data set.

    The download goes on where it was interrupted, and nothing is used before its SHA-256 is right.
    """
    screen = console()
    if name is Name.cifar10:
        if directory is None:
            raise ValueError("--dir is missing: say where CIFAR-10 is, or is to go")
        _fetch(directory, screen)
    recipe = Recipe(data=name.value, directory=None if directory is None else str(directory))
    _describe(recipe.load(), screen)


def _fetch(directory: Path, screen: Console) -> None:
    from ..data.cifar10 import fetch, verify

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task("cifar-10-binary.tar.gz", visible=False)
        fetch(directory, lambda done, total: bar.update(task, completed=done, total=total, visible=True))
    for file in verify(directory):
        screen.print(f"{file.file}: {file.bytes:,} bytes, SHA-256 verified", highlight=False, soft_wrap=True)


def _describe(found: Data, screen: Console) -> None:
    sizes = ", ".join(
        f"{len(found.part(part)):,} {word}"
        for part, word in (("train", "training"), ("val", "validation"), ("test", "test"))
    )
    shape = " x ".join(str(n) for n in found.image_size)
    screen.print(
        f"{found.name}: {sizes} images of {shape}; {len(found.classes)} classes", highlight=False, soft_wrap=True
    )
