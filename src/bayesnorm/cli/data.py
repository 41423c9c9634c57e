"""``bayesnorm data``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..data.base import Data
from ..train import Recipe
from .options import Debug, some_settings
from .tables import console
from .world import is_first


class Name(enum.StrEnum):
    """Data sets."""

    digits = "digits"
    cifar10 = "cifar10"
    cells = "cells"
    strokes = "strokes"
    folder = "folder"


@some_settings(["directory", "split_seed", "image_size", "masks", "cell_split", "reduce"])
def data(
    *,
    settings: dict[str, Any],
    name: Annotated[Name, typer.Argument(help="Which data set.")],
    debug: Debug = False,
) -> None:
    """Download CIFAR-10 or verify what is there; read and check any other data set.

    The download goes on where it was interrupted, and nothing is used before its SHA-256 is right.
    """
    screen = console()
    recipe = Recipe(data=name.value, **settings)
    if name is Name.cifar10:
        _fetch(Path(settings["directory"]), screen)
    _describe(recipe.load(), screen)


def tell_frames(name: str, data: Data, screen: Console) -> None:
    """How many frames of the cells are annotated, which a folder does not show at a glance."""
    if name == "cells" and is_first():
        train, val = len(data.train), len(data.val)
        of = f"{train + val} of {train + val + data.unused}" if data.unused else f"{train + val}"
        text = f"{of} frames are annotated and used: {train} for training, {val} for validation"
        screen.print(text, highlight=False, soft_wrap=True)


def _fetch(directory: Path, screen: Console) -> None:
    from ..data.cifar10 import fetch, verify

    columns = (
        TextColumn("{task.description}", markup=False),
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
    if found.test is found.val:
        sizes = sizes.replace(" test", " the same for testing:")
    shape = " x ".join(str(n) for n in found.image_size)
    screen.print(
        f"{found.name}: {sizes} images of {shape}; {len(found.classes)} classes", highlight=False, soft_wrap=True
    )
