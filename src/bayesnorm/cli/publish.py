"""``bayesnorm publish``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..models import Pretrained
from ..train import load
from ..train.documents import Trained, evaluation_work
from ..train.publish import places
from ..train.publish import publish as write
from .options import Debug, Device, Dir
from .output import refuse_unfit
from .tables import console
from .world import choose_device


def publish(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    name: Annotated[str, typer.Option(help="What bayesnorm.models.load will know it by, as in allcnn-cifar10.")],
    to: Annotated[Path, typer.Option(help="Folder of the two files.")] = Path(),
    samples: Annotated[int, typer.Option(help="Draws of the scales with which it is evaluated.", min=0)] = 30,
    directory: Dir = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Make a pretrained network of a run: NAME.safetensors, weights in half precision, and NAME.json with all else.

    The files are read back, and their predictions of validation images compared with those of the run. The checksum is
    printed as sha256sum -c reads it.
    """
    places(name, to)
    refuse_unfit("--to", to / f"{name}.json")
    found = load(run, directory, choose_device(device))
    screen = console()
    columns = (TextColumn("evaluating"), BarColumn(None), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        trained = Trained.of(found)
        task = bar.add_task("", total=evaluation_work(trained, "test", samples))
        made = write(found, name, to, samples, lambda count: bar.advance(task, count))
    for line in lines(made, to):
        screen.print(line, highlight=False, soft_wrap=True)


def lines(made: Pretrained, folder: Path) -> list[str]:
    """What is to be known about a network that was published."""
    card = made.card
    halving, accept, file = card["halving"], card["accept"], card["file"]
    best = list(card["metrics"].values())[-1]
    judged = "test" if card.get("has_test", True) else "validation"
    of = f"the pixels of {accept['images']}" if card["per_pixel"] else accept["images"]
    trusted = f"up to an entropy of {accept['entropy']:.3g}" if accept["entropy"] is not None else "none"
    return [
        f"{file['sha256']}  {folder / file['name']}",
        f"{file['bytes']:,} bytes; {judged} accuracy {100 * best['accuracy']:.2f} % of the run",
        f"half precision changes no probability by more than {halving['largest_change']:.2g} ({halving['images']} "
        "validation images)",
        f"accepted at {100 * accept['risk']:.0f} % error: {100 * accept['coverage']:.1f} % of {of} "
        f"validation images, {trusted}",
        f'bayesnorm.models.load("{made.name}", folder="{folder}")',
    ]
