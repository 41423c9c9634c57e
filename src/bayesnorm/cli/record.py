"""``bayesnorm record``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..train.record import record as write
from .options import Debug
from .tables import console


def record(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    to: Annotated[Path, typer.Option(help="Folder of the records, as in results/cells/records.")],
    debug: Debug = False,
) -> None:
    """Keep what tables and figures need of runs: settings, curves, search and measurements, not the checkpoints.

    `bayesnorm reproduce --runs FOLDER` draws from records without training, data or GPU.
    """
    for path in write(runs, to):
        console().print(f"written: {path}", highlight=False, soft_wrap=True)
