"""``bayesnorm ensemble``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..report.drawing import replace
from ..train import load
from ..train.documents import Trained, known_evaluation
from ..train.ensemble import ensemble as together
from .evaluate import NO_TEST, evaluated, metrics_of
from .options import Debug, Device, Dir
from .output import refuse_unfit
from .tables import console, evaluation_table
from .world import choose_device


def ensemble(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of two runs or more on the same data.")],
    samples: Annotated[
        int, typer.Option(help="Draws of the scales of each network; 0: single passes with their means.", min=0)
    ] = 30,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write it to a file (JSON).")] = None,
    directory: Dir = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Runs together, as a deep ensemble: the mean of the probabilities of their networks, on the test set.

    A run that was not evaluated yet is, as by `bayesnorm eval`; the ensemble stands below its members.
    """
    if out is not None:
        refuse_unfit("--out", out)
    place = choose_device(device)
    members = [Trained.of(load(run, directory, place)) for run in runs]
    screen = console()
    with screen.status("the ensemble"):
        document = together(members, samples)
    rows = {
        str(run.folder.path): metrics_of(known_evaluation(run) or evaluated(run, "test", samples, screen))
        for run in members
    }
    rows[f"ensemble of {len(members)}"] = metrics_of(document)
    part = "test set" if document["has_test"] else NO_TEST
    screen.print(evaluation_table(rows, f"{document['data']}, {part}, {document['images']} images"))
    if out is not None:
        replace(out, (json.dumps(document, allow_nan=False) + "\n").encode())
        screen.print(f"written: {out}", highlight=False, soft_wrap=True)
