"""``bayesnorm eval``."""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from ..data.base import Data
from ..errors import RunError
from ..evaluate import Metrics, as_json
from ..evaluate import evaluate as measure
from ..train import load
from ..train.methods import method_name
from ..train.run_folder import RunFolder
from .options import Debug, Device, Dir
from .tables import console, evaluation_table, scales_table
from .world import choose_device


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
    quiet = not console().is_terminal
    metrics = evaluated(found.net, found.data, found.folder, split.value, samples, found.config.seed, found.step, quiet)
    show(console(), found.folder, metrics, split.value, found.step)


def evaluated(
    net: nn.Module, data: Data, folder: RunFolder, part: str, samples: int, seed: int, step: int, quiet: bool = False
) -> dict[str, Metrics]:
    """Metrics of a run, from its folder if they were measured there at this step, else measured and stored."""
    name = f"evaluation-{part}.json"
    stored = folder.read(name)
    if stored is not None and stored["samples"] == samples and stored["step"] == step:
        return stored_evaluation(folder, part)
    with Progress(
        TextColumn(f"evaluating on {part}"), BarColumn(None), TimeRemainingColumn(), transient=True, disable=quiet
    ) as bar:
        task = bar.add_task("", total=len(data.part(part)))
        metrics = measure(net, data, part, samples, seed, lambda count: bar.advance(task, count))
    folder.write(name, {"split": part, "samples": samples, "step": step, "metrics": as_json(metrics)})
    return metrics


def stored_evaluation(folder: RunFolder, part: str) -> dict[str, Metrics]:
    """What was measured before."""
    stored = folder.read(f"evaluation-{part}.json")
    if stored is None:
        raise RunError(f"{folder.path} was not evaluated: `bayesnorm eval {folder.path} --split {part}` does")
    return {way: _metrics(values) for way, values in stored["metrics"].items()}


def _metrics(values: dict[str, Any]) -> Metrics:
    known: dict[str, Any] = {key: math.inf if value is None else value for key, value in values.items()}
    return Metrics(**known)


def show(screen: Console, folder: RunFolder, metrics: dict[str, Metrics], part: str, step: int) -> None:
    """Print the results of a run."""
    about = folder.about()
    method = method_name(about["recipe"]["norm"], about["recipe"]["scale"], about["config"]["project"])
    title = f"{about['data']['name']}, {part}, {metrics['single'].count} targets, step {step}: {folder.path}"
    screen.print(evaluation_table({method: metrics}, title))
    history = folder.history()
    if history and history[-1]["sigma_over_s"]:
        screen.print(scales_table({method: history[-1]["sigma_over_s"]}))
