"""``bayesnorm demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..evaluate import Metrics
from ..report import curves
from ..train import Config, Recipe, fit
from ..train.events import Callback, Record
from ..train.methods import TABLE, settings_of
from ..train.recipe import resolve
from ..train.run_folder import RunFolder
from .evaluate import evaluated, stored_evaluation
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
    metrics: dict[str, dict[str, Metrics]] = {}
    histories: dict[str, list[Record]] = {}
    for method in TABLE:
        folder = RunFolder(out / method)
        metrics[method] = stored_evaluation(folder, "test")
        histories[method] = folder.history()
    count = metrics[TABLE[0]]["single"].count
    screen.print(evaluation_table(metrics, f"scikit-learn's digits, test set of {count} images"))
    ratios = {name: found[-1]["sigma_over_s"] for name, found in histories.items() if found[-1]["sigma_over_s"]}
    screen.print(scales_table(ratios))
    figures = [
        *curves.save(curves.training_curves(histories), out / "training"),
        *curves.save(curves.scale_noise(ratios), out / "sigma"),
    ]
    screen.print(f"runs in {out}, figures: {', '.join(str(path) for path in figures)}", highlight=False, soft_wrap=True)


def train_row(method: str, emit: Callback, out: Path, settings: dict[str, object]) -> None:
    """One row of the table, trained and evaluated; what is done already is not done again."""
    recipe_settings, config_settings = resolve({**settings, **settings_of(method)})
    recipe, config = Recipe(**recipe_settings), Config.from_dict(config_settings)
    data = recipe.load()
    net = recipe.build(data, config.seed)
    folder = RunFolder(out / method)
    run = fit(net, data, config, out=folder.path, resume=True, callbacks=[emit], recipe=recipe.as_dict())
    evaluated(run.net, data, folder, "test", SAMPLES, config.seed, run.result["steps"], quiet=True)
