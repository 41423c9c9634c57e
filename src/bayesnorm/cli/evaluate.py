"""``bayesnorm eval``."""

from __future__ import annotations

import enum
import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from .._posterior import posterior
from ..data.base import Data
from ..errors import RunError
from ..evaluate import Metrics, as_json
from ..evaluate import evaluate as measure
from ..train import Config, load
from ..train.methods import method_name
from ..train.numerics import numerics
from ..train.run_folder import RunFolder
from ..train.state import digest
from .options import Debug, Device, Dir
from .tables import console, evaluation_table, scales_table
from .world import choose_device

Document = dict[str, Any]
"""What is stored of an evaluation."""


class Part(enum.StrEnum):
    """Splits of a data set."""

    train = "train"
    val = "val"
    test = "test"


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    samples: Annotated[int, typer.Option(help="Draws of the scales; 0: a single pass with their means.", min=0)] = 30,
    split: Annotated[Part, typer.Option(help="What to predict.")] = Part.test,
    directory: Dir = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Evaluate a run: accuracy, NLL and calibration error, with the mean scales and by Monte Carlo."""
    found = load(run, directory, choose_device(device))
    screen = console()
    document = evaluated(found.folder, found.net, found.data, found.config, split.value, samples, found.step, screen)
    show(screen, found.folder, document)


def evaluated(
    folder: RunFolder,
    net: nn.Module,
    data: Data,
    config: Config,
    part: str,
    samples: int,
    step: int,
    screen: Console | None = None,
) -> Document:
    """Evaluation of a run, from its folder if it was made there with this very network, else made and stored.

    Arguments:
        screen: where progress is shown, if it is a terminal.
    """
    state = digest(net.state_dict())
    stored = folder.read(_name(part))
    if stored is not None and stored["samples"] == samples and stored.get("network") == state:
        return stored
    hidden = screen is None or not screen.is_terminal
    columns = (TextColumn(f"evaluating on {part}"), BarColumn(None), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=hidden) as bar, numerics(config, data.device):
        task = bar.add_task("", total=len(data.part(part)))
        metrics = measure(net, data, part, samples, config.seed, lambda count: bar.advance(task, count))
    document = {
        "split": part,
        "samples": samples,
        "step": step,
        "network": state,
        "metrics": as_json(metrics),
        "sigma_over_s": {name: (p.sigma / p.mean).mean().item() for name, p in posterior(net).items()},
    }
    try:
        folder.write(_name(part), document)
    except RunError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        warnings.warn(f"{folder.path} may not be written: the evaluation is not stored", stacklevel=2)
    return document


def stored_evaluation(folder: RunFolder, part: str) -> Document:
    """What was measured before."""
    stored = folder.read(_name(part))
    if stored is None:
        raise RunError(f"{folder.path} was not evaluated: `bayesnorm eval {folder.path} --split {part}` does")
    return stored


def metrics_of(document: Document) -> dict[str, Metrics]:
    """Metrics by the way of predicting."""
    found: dict[str, Metrics] = {}
    for way, values in document["metrics"].items():
        known: dict[str, Any] = {key: math.inf if value is None else value for key, value in values.items()}
        found[way] = Metrics(**known)
    return found


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


def _name(part: str) -> str:
    return f"evaluation-{part}.json"
