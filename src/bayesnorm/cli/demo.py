"""``bayesnorm demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from ..report import curves
from ..train import Config, Recipe, fit
from ..train.events import Callback
from ..train.methods import TABLE, settings_of
from ..train.recipe import prepare, resolve
from ..train.run_folder import RunFolder
from .evaluate import evaluated, metrics_of, stored_evaluation
from .options import Debug
from .progress import shown
from .tables import console, evaluation_table, scales_table
from .workers import side_by_side

SAMPLES = 30


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and figures.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of each row.", min=1)] = 50,
    lr_trials: Annotated[int, typer.Option(help="Trials of each learning-rate search.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Of order, augmentation and initialization.", min=0)] = 0,
    debug: Debug = False,
) -> None:
    """Train the five rows of the paper's table on scikit-learn's digits, and compare them.

    Each row has its learning rate found by search. Interrupted, the same command goes on; finished, it shows the table.
    """
    screen = console()
    settings = {"data": "digits", "epochs": epochs, "lr_trials": lr_trials, "seed": seed}
    with shown(screen, *TABLE) as callbacks:
        # The later rows take longer: first, so that none is left over at the end.
        side_by_side(TABLE[::-1], train_row, (out, settings), callbacks)
    documents = {method: stored_evaluation(RunFolder(out / method), "test") for method in TABLE}
    metrics = {method: metrics_of(document) for method, document in documents.items()}
    count = metrics[TABLE[0]]["single"].count
    screen.print(evaluation_table(metrics, f"scikit-learn's digits, test set of {count} images"))
    ratios = {method: found["sigma_over_s"] for method, found in documents.items() if found["sigma_over_s"]}
    screen.print(scales_table(ratios))
    histories = {method: RunFolder(out / method).history() for method in TABLE}
    figures = [
        *curves.save(curves.training_curves(histories), out / "training"),
        *curves.save(curves.scale_noise(ratios), out / "sigma"),
    ]
    screen.print(f"runs in {out}, figures: {', '.join(str(path) for path in figures)}", highlight=False, soft_wrap=True)


def train_row(method: str, emit: Callback, out: Path, settings: dict[str, object]) -> None:
    """One row of the table, trained and evaluated; what is done already is not done again."""
    recipe_settings, config_settings = resolve({**settings, **settings_of(method)})
    recipe, config = Recipe(**recipe_settings), Config.from_dict(config_settings)
    data, net = prepare(recipe, config, torch.device("cpu"))
    folder = RunFolder(out / method)
    run = fit(net, data, config, out=folder.path, resume=True, callbacks=[emit], recipe=recipe.as_dict())
    evaluated(folder, net, data, config, "test", SAMPLES, run.result["steps"])
