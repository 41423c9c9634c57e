"""``bayesnorm train`` and ``bayesnorm lr``."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import DivergedError
from ..report import curves
from ..report.drawing import save
from ..train import Config, Recipe, find_lr, fit
from ..train._load import begun_with
from ..train.defaults import resolve
from ..train.documents import SAMPLES, Trained, final_evaluation
from ..train.events import Callback
from ..train.recipe import prepare
from ..train.run_folder import RunFolder
from .data import tell_frames
from .evaluate import evaluated, show
from .fleet import train_fleet
from .names import default_name
from .options import Debug, Device, Part, StopAfter, deadline, with_settings
from .progress import shown
from .tables import console
from .world import choose_device, is_distributed, is_first

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of the run. [default: runs/DATA-METHOD-seedN]", show_default=False),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the run in --out; start if there is none, do nothing if it is finished. May always be passed.",
    ),
]


@with_settings
def train(
    *,
    settings: dict[str, Any],
    out: Out = None,
    resume: Resume = False,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Draws of the evaluation at the end; 0: a single pass. [default: 30]", min=0, show_default=False
        ),
    ] = None,
    split: Annotated[
        Part, typer.Option(help="What it is evaluated on; val where settings are compared, so that the test stays new.")
    ] = Part.test,
    fleet: Annotated[
        Path | None, typer.Option(help="Train the runs of a JSON file, a list of settings, on one device at once.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
    stop_after: StopAfter = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Train a network and evaluate it.

    The folder of the run holds all that is needed to go on after any interruption (--resume) and to evaluate later.
    Several devices: torchrun --nproc-per-node=N -m bayesnorm train ...
    """
    stop_at = deadline(stop_after)
    screen, place = console(), choose_device(device)
    draws = SAMPLES if samples is None else samples
    if fleet is not None:
        if out is not None or tensorboard:
            raise ValueError("--fleet: --out and --tensorboard are for one run; the file names the folders")
        if train_fleet(fleet, settings, resume, (split.value, draws), place, screen, stop_at):
            raise DivergedError("some runs of the fleet diverged; the others are finished")
        return
    recipe, config, path = asked(settings, out, resume)
    folder = RunFolder(path)
    if resume and _is_done(folder, recipe, config, split.value, samples, screen):
        return
    data, net = prepare(recipe, config, place)
    tell_frames(recipe.data, data, screen)
    with ExitStack() as stack:
        callbacks: list[Callback] = [stack.enter_context(shown(screen, ""))[""]]
        if tensorboard and is_first():
            callbacks.append(stack.enter_context(_tensorboard(path)))
        options: dict[str, Any] = {"out": path, "resume": resume, "recipe": recipe.as_dict(), "stop_at": stop_at}
        run = fit(net, data, config, callbacks=callbacks, **options)
    if is_first():
        trained = Trained(folder, net, data, config, run.result["steps"])
        show(screen, folder, evaluated(trained, split.value, draws, screen))
        if run.search is not None:
            _draw_search(folder, [dataclasses.asdict(trial) for trial in run.search.trials], run.lr)


@with_settings
def lr(
    *,
    settings: dict[str, Any],
    out: Out = None,
    resume: Resume = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Search the learning rate alone, and draw its curve.

    Minimizes the training NLL after --lr-epochs epochs over --lr-trials trials between --lr-low and --lr-high. The
    folder is that of a run: `bayesnorm train --out ... --resume` goes on with what was found.
    """
    if settings.get("lr", "auto") != "auto":
        raise ValueError(
            f"--lr {settings['lr']}: the command is to find it; leave it out, or narrow --lr-low and --lr-high"
        )
    recipe, config, path = asked({**settings, "lr": "auto"}, out, resume)
    screen = console()
    data, net = prepare(recipe, config, choose_device(device))
    tell_frames(recipe.data, data, screen)
    with shown(screen, "") as progress:
        found = find_lr(net, data, config, out=path, resume=resume, callbacks=[progress[""]], recipe=recipe.as_dict())
    if is_first():
        files = _draw_search(RunFolder(path), [dataclasses.asdict(trial) for trial in found.trials], found.best)
        screen.print(f"learning rate {found.best:.4g}; the curve is in {files[0]}", highlight=False, soft_wrap=True)


def _is_done(
    folder: RunFolder, recipe: Recipe, config: Config, part: str, samples: int | None, screen: Console
) -> bool:
    """Show a run that is finished and evaluated, if draws were asked for with as many, without its data."""
    if is_distributed():
        return False
    result = folder.finished({"config": config.as_dict(), "recipe": recipe.as_dict()})
    stored = None if result is None else final_evaluation(folder, result, part)
    if stored is None or samples not in (None, stored["samples"]):
        return False
    show(screen, folder, stored)
    return True


def _draw_search(folder: RunFolder, trials: list[dict[str, Any]], best: float) -> list[Path]:
    figures = folder.path / "figures"
    figures.mkdir(exist_ok=True)
    return save(curves.lr_curve(trials, best), figures / "lr_search")


def _tensorboard(path: Path) -> Any:
    from ..train.tensorboard import tensorboard

    return tensorboard(path / "tensorboard")


def asked(settings: dict[str, Any], out: Path | None, resume: bool) -> tuple[Recipe, Config, Path]:
    """What to train, how and where; what a resumed run was begun with need not be repeated."""
    recipe, config = resolve(settings)
    path = out or Path("runs") / default_name(recipe, config)
    folder = RunFolder(path)
    if not resume:
        folder.refuse_taken()
    else:
        recipe, config = resolve(begun_with(path, settings))
    return Recipe(**recipe), Config.from_dict(config), path
