"""``bayesnorm report``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ..errors import RunError
from ..report.drawing import replace, save
from ..report.figures import figures_of
from ..report.html.page import page
from ..report.summary import read
from ..train import checkpoint, load
from ..train.documents import ROBUSTNESS, Trained, certainty, evaluation, robustness
from ..train.run_folder import RunFolder
from .options import Debug, Device, Dir
from .output import refuse_unfit
from .tables import console
from .world import choose_device


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; figures go into a folder beside it.")] = Path(
        "report.html"
    ),
    samples: Annotated[int, typer.Option(help="Draws, where a run was not evaluated yet.", min=0)] = 30,
    directory: Dir = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """One self-contained HTML page about runs: table, curves, calibration, rejection, learned noise, examples.

    What was not measured yet is measured first: evaluation, robustness, most and least certain images. The figures are
    also written as SVG and PNG.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {out}: give a file that ends with .html")
    refuse_unfit("--out", out)
    figures = out.with_name(f"{out.stem}-figures")
    refuse_unfit("--out", figures / "any")
    screen, place = console(), choose_device(device)
    names = _names(_folders(runs, screen))
    made = {path: name for path, name in names.items() if RunFolder(path).about()["recipe"]}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(None))
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=3 * len(made))
        for path, name in made.items():  # a network of one's own has what was stored

            def tell(what: str, name: str = name) -> None:
                bar.update(task, description=f"{what} {name}", advance=1)

            if checkpoint.latest(RunFolder(path).checkpoints) is None:
                measured = RunFolder(path).read("evaluation-test.json") is not None
                without = "as it was measured" if measured else "without an evaluation"
                screen.print(f"{name} has no checkpoint: it is shown {without}", highlight=False)
                continue
            _measure(path, directory, place, samples, tell)
    summaries = [read(path, name) for path, name in names.items()]
    replace(out, page(summaries, "bayesnorm report").encode())
    written = [file for name, figure in figures_of(summaries).items() for file in save(figure, figures / name)]
    screen.print(f"{out}; {len(written)} figures in {figures}", highlight=False, soft_wrap=True)


def _measure(path: Path, directory: str | None, place: torch.device, samples: int, tell: Callable[[str], None]) -> None:
    """Make the documents that are missing."""
    found = load(path, directory, place)
    run = Trained.of(found)
    judged, disturbed = (found.folder.read(f"{name}-test.json") or {} for name in ("evaluation", "robustness"))
    tell("evaluating")
    evaluation(run, "test", judged.get("samples", samples))
    tell("looking for examples of")
    certainty(run, samples)
    tell("disturbing the images of")
    robustness(run, disturbed.get("count", ROBUSTNESS))


def _folders(runs: list[Path], screen: Console) -> list[Path]:
    """Without the files that stand beside runs, where there is a run at all: ``runs/*`` names them too."""
    files = [path for path in runs if path.is_file()]
    if not files or len(files) == len(runs):
        return runs
    screen.print(f"left out, as they are no folders: {', '.join(map(str, files))}", highlight=False, soft_wrap=True)
    return [path for path in runs if path not in files]


def _names(runs: list[Path]) -> dict[Path, str]:
    """Short names: the last part of a path that tells them apart."""
    places = [path.resolve() for path in runs]
    twice = next((path for path, place in zip(runs, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise RunError(f"{twice} was named twice: name each run once")
    depth = 1
    while len({place.parts[-depth:] for place in places}) < len(places):
        depth += 1
    return {path: "/".join(place.parts[-depth:]) for path, place in zip(runs, places, strict=True)}
