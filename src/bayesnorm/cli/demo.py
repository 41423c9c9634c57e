"""``bayesnorm demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..evaluate.comparison import of_batch_norm, of_dropout, of_ensemble
from ..evaluate.panel import Judgement, Measures
from ..report import curves
from ..report.drawing import save
from ..train import load
from ..train.documents import stored_evaluation
from ..train.job import Job, complete_named
from ..train.methods import TABLE, settings_of
from ..train.workers import side_by_side
from .evaluate import metrics_of
from .options import Debug
from .progress import shown
from .tables import console, evaluation_table, scales_table

SAMPLES = 30
MEMBERS = 5
"""Networks of the deep ensemble, that of the table among them."""
DROPPED = "none+dropout"
DROPOUT = 0.1
"""Half, as in All-CNN, would leave 12 channels too little."""

Rows = dict[str, dict[str, Measures]]


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and figures.")] = Path("runs/demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of each row.", min=1)] = 50,
    lr_trials: Annotated[int, typer.Option(help="Trials of each learning-rate search.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Of order, augmentation and initialization.", min=0)] = 0,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also MC batch norm, stochastic batch norm, MC dropout, a deep ensemble: five more networks.",
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Train the five rows of the paper's table on scikit-learn's digits, and compare them.

    Each row has its learning rate found by search. Interrupted, the same command goes on; finished, it shows the table.
    """
    screen = console()
    settings = {"data": "digits", "epochs": epochs, "lr_trials": lr_trials, "seed": seed}
    jobs = {method: Job(out / method, {**settings, **settings_of(method)}, SAMPLES) for method in TABLE}
    if baselines:
        jobs[DROPPED] = Job(out / DROPPED, {**settings, **settings_of("none"), "dropout": DROPOUT}, SAMPLES)
    _train(screen, jobs)
    documents = {method: stored_evaluation(jobs[method].folder, "test") for method in jobs}
    rows: Rows = {method: metrics_of(document) for method, document in documents.items()}
    if baselines:
        for method, found in _baselines(screen, jobs).items():
            rows[method] = {**rows.get(method, {}), **found}
    count = rows[TABLE[0]]["single"].count
    screen.print(evaluation_table(rows, f"scikit-learn's digits, test set of {count} images"))
    ratios = {method: found["sigma_over_s"] for method, found in documents.items() if found["sigma_over_s"]}
    screen.print(scales_table(ratios))
    histories = {method: jobs[method].folder.history() for method in TABLE}
    figures = [
        *save(curves.training_curves(histories), out / "training"),
        *save(curves.scale_noise(ratios), out / "sigma"),
    ]
    screen.print(f"runs in {out}, figures: {', '.join(str(path) for path in figures)}", highlight=False, soft_wrap=True)


def _train(screen: Console, jobs: dict[str, Job]) -> None:
    # The later rows take longer: first, so that none is left over at the end.
    names = [name for name in reversed(jobs) if not jobs[name].is_done()]
    with shown(screen, *reversed(names)) as callbacks:
        side_by_side(names, complete_named, (jobs,), callbacks)


def _baselines(screen: Console, jobs: dict[str, Job]) -> Rows:
    """Rows of the baselines: of the table's batch-norm network, of others like it, and of one with dropout."""
    first = load(jobs["batch"].path)
    settings: dict[str, Any] = {**jobs["batch"].settings, "lr": (first.result or {})["lr"]}
    seeds = range(first.config.seed + 1, first.config.seed + MEMBERS)
    more = {
        f"batch-seed{seed}": Job(jobs["batch"].path.parent / f"batch-seed{seed}", {**settings, "seed": seed})
        for seed in seeds
    }
    _train(screen, more)
    nets = [first.net, *[load(job.path).net for job in more.values()]]
    dropped = load(jobs[DROPPED].path)
    return {
        "batch": _measures(of_batch_norm(first.net, first.data, first.config.batch, SAMPLES, first.config.seed)),
        DROPPED: _measures(of_dropout(dropped.net, dropped.data, SAMPLES, dropped.config.seed)),
        f"ensemble of {MEMBERS} batch": _measures(of_ensemble(nets, first.data, seed=first.config.seed)),
    }


def _measures(judgements: dict[str, Judgement]) -> dict[str, Measures]:
    return {way: found.measures for way, found in judgements.items()}
