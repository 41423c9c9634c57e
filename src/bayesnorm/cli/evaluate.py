"""``bayesnorm eval``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..data.foreign import foreign
from ..evaluate.evaluation import measures_from_json
from ..evaluate.ood import between
from ..evaluate.panel import Measures
from ..train import load
from ..train.documents import Document, Trained, evaluation, evaluation_work
from ..train.methods import method_name
from ..train.run_folder import RunFolder
from .options import Debug, Device, Dir, Part
from .tables import console, evaluation_table, scales_table, separation_table
from .world import choose_device


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    samples: Annotated[int, typer.Option(help="Draws of the scales; 0: a single pass with their means.", min=0)] = 30,
    split: Annotated[Part, typer.Option(help="What to predict.")] = Part.test,
    outside: Annotated[
        Path | None,
        typer.Option(help="Folder of images of another kind: how well does the uncertainty tell them apart?"),
    ] = None,
    directory: Dir = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Evaluate a run: accuracy, NLL, calibration and error under rejection, by every way of predicting.

    Ways are a single pass with the mean scales, moments (the posterior carried to the outputs), and 10 and more draws.
    T is the temperature that fits the validation set best, NLL/T the NLL at that temperature.
    """
    found = load(run, directory, choose_device(device))
    screen = console()
    trained = Trained(found.folder, found.net, found.data, found.config, found.step)
    images = None if outside is None else foreign(outside, found.data)
    show(screen, found.folder, evaluated(trained, split.value, samples, screen))
    if images is not None:
        title = f"{len(images)} images of {outside} against {len(found.data.test)} of the test set"
        screen.print(separation_table(between(found.net, found.data, images, samples), title))


def evaluated(run: Trained, part: str, samples: int, screen: Console) -> Document:
    """Evaluation of a run, made if need be; progress is shown on a terminal."""
    columns = (TextColumn(f"evaluating on {part}"), BarColumn(None), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=evaluation_work(run, part, samples))
        return evaluation(run, part, samples, lambda count: bar.advance(task, count))


def metrics_of(document: Document) -> dict[str, Measures]:
    """Measures by the way of predicting."""
    return {way: measures_from_json(values) for way, values in document["metrics"].items()}


def show(screen: Console, folder: RunFolder, document: Document) -> None:
    """Print the evaluation of a run."""
    about, metrics = folder.about(), metrics_of(document)
    method = method_name(about["recipe"]["norm"], about["recipe"]["scale"], about["config"]["project"])
    part = document["split"]
    if part == "test" and about["recipe"]["data"] == "cells":
        part = "validation frames (there are no others to test on)"
    title = (
        f"{about['data']['name']}, {part}, {metrics['single'].count} targets, step {document['step']}: {folder.path}"
    )
    screen.print(evaluation_table({method: metrics}, title))
    if document["sigma_over_s"]:
        screen.print(scales_table({method: document["sigma_over_s"]}))
