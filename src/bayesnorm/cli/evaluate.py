"""``bayesnorm eval``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..data.foreign import foreign
from ..evaluate.evaluation import measures_from_json, ways
from ..evaluate.ood import between
from ..evaluate.panel import Measures
from ..report.ways import label
from ..train import load
from ..train.documents import Document, Trained, baselines, evaluation, evaluation_work
from ..train.methods import method_of
from ..train.run_folder import RunFolder
from .options import Debug, Device, Dir, Part
from .tables import console, evaluation_table, scales_table, separation_table
from .world import choose_device

NO_TEST = "validation frames (there are no others to test on)"


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    samples: Annotated[int, typer.Option(help="Draws of the scales; 0: a single pass with their means.", min=0)] = 30,
    split: Annotated[Part, typer.Option(help="What to predict.")] = Part.test,
    outside: Annotated[
        Path | None,
        typer.Option(help="Folder of images of another kind: how well does the uncertainty tell them apart?"),
    ] = None,
    others: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also other averages over random networks, on the test set: MC batch norm, stochastic batch norm, MC "
            "dropout, as far as the network allows them.",
        ),
    ] = False,
    directory: Dir = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Evaluate a run: accuracy, NLL, calibration and error under rejection, by every way of predicting.

    Ways are a single pass with the mean scales, moments (the posterior carried to the outputs), and 10 and more draws.
    T is the temperature that fits the validation set best, NLL/T the NLL at that temperature.
    """
    if others and (split is not Part.test or samples == 0):
        raise ValueError("--baselines are averages over draws, on the test set: leave --split out, give --samples")
    trained = Trained.of(load(run, directory, choose_device(device)))
    screen = console()
    images = None if outside is None else foreign(outside, trained.data)
    found = {}
    if others:
        with screen.status("baselines"):
            found = baselines(trained, samples)["metrics"]
    document = evaluated(trained, split.value, samples, screen)
    document = {**document, "metrics": {**document["metrics"], **found}}
    show(screen, trained.folder, document)
    if images is not None:
        ours = "the test set" if trained.data.has_test else "the validation set"
        how = label(ways(trained.net, trained.data, samples)[-1])
        title = f"{len(images)} images of {outside} against {len(trained.data.test)} of {ours}, by {how}"
        screen.print(separation_table(between(trained.net, trained.data, images, samples), title))


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
    method = method_of(about)
    part = document["split"]
    if part == "test" and about["recipe"]["data"] == "cells":
        part = NO_TEST
    title = (
        f"{about['data']['name']}, {part}, {metrics['single'].count} targets, step {document['step']}: {folder.path}"
    )
    screen.print(evaluation_table({method: metrics}, title))
    if document["sigma_over_s"]:
        screen.print(scales_table({method: document["sigma_over_s"]}))
