"""``bayesnorm demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..evaluate import Metrics
from ..report import curves
from ..train import Config, Recipe, fit
from ..train.events import Record
from ..train.methods import TABLE, settings_of
from ..train.recipe import resolve
from ..train.run_folder import RunFolder
from .evaluate import evaluated
from .options import Debug
from .progress import shown
from .tables import console, evaluation_table, scales_table


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and figures.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of each row.", min=1)] = 50,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    debug: Debug = False,
) -> None:
    """Train the five rows of the paper's table on scikit-learn's digits, and compare them.

    Each row has its learning rate found by search. Interrupted, the same command goes on; finished, it shows the table.
    """
    screen = console()
    metrics: dict[str, dict[str, Metrics]] = {}
    histories: dict[str, list[Record]] = {}
    for method in TABLE:
        recipe_settings, config_settings = resolve(
            {"data": "digits", **settings_of(method), "epochs": epochs, "seed": seed}
        )
        recipe, config = Recipe(**recipe_settings), Config.from_dict(config_settings)
        data = recipe.load()
        net = recipe.build(data, config.seed)
        folder = RunFolder(out / method)
        with shown(screen, method) as progress:
            run = fit(net, data, config, out=folder.path, resume=True, callbacks=[progress], recipe=recipe.as_dict())
        metrics[method] = evaluated(run.net, data, folder, "test", 30, seed, run.result["steps"])
        histories[method] = run.history
    screen.print(evaluation_table(metrics, f"scikit-learn's digits, test set of {len(data.test)} images"))
    ratios = {name: found[-1]["sigma_over_s"] for name, found in histories.items() if found[-1]["sigma_over_s"]}
    screen.print(scales_table(ratios))
    figures = [
        *curves.save(curves.training_curves(histories), out / "training"),
        *curves.save(curves.scale_noise(ratios), out / "sigma"),
    ]
    screen.print(f"runs in {out}, figures: {', '.join(str(path) for path in figures)}", highlight=False, soft_wrap=True)
