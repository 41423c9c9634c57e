"""Many runs at once: ``bayesnorm train --fleet``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..errors import DivergedError, RunError
from ..train import Config, Member, Recipe, fit_fleet
from ..train._load import begun_with
from ..train.defaults import resolve
from ..train.documents import Trained
from ..train.job import Shelf, member_of
from ..train.recipe import NO_FILES
from ..train.run_folder import RunFolder
from .data import tell_frames
from .evaluate import NO_TEST, evaluated, metrics_of
from .names import default_name
from .progress import shown
from .tables import evaluation_table

WORDS = {"train": "training set", "val": "validation set", "test": "test set"}


def read_fleet(path: Path, common: dict[str, Any]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Folder and settings of every run of a file, by name.

    Arguments:
        path: a JSON list of objects, each with settings as in ``config.json`` and, if it likes, ``out``.
        common: settings of all, which those of the file override.
    """
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; name a JSON file with a list of runs") from error
    except ValueError as error:
        raise RunError(f"{path} is no JSON ({error}): write a list of objects with settings") from error
    if not isinstance(found, list) or not found or not all(isinstance(run, dict) for run in found):
        raise RunError(f"{path}: write a list of objects with settings, at least one")
    members: dict[str, tuple[Path, dict[str, Any]]] = {}
    places: set[Path] = set()
    for count, run in enumerate(found, 1):
        where = f"{path}, run {count}"
        settings = {**common, **{key: value for key, value in run.items() if key != "out"}}
        if settings.get("data", Recipe.data) in NO_FILES and "directory" not in run:
            settings.pop("directory", None)  # that of the others
        if not isinstance(run.get("out", ""), str):
            raise RunError(f'{where}: "out" is {run["out"]!r}; give the name of a folder')
        try:
            recipe, config = resolve(settings)
            Recipe(**recipe), Config.from_dict(config)
        except ValueError as error:
            raise RunError(f"{where}: {error}") from error
        place = Path(run["out"]) if "out" in run else Path("runs") / default_name(recipe, config)
        if place.resolve() in places:
            raise RunError(f'{where}: another run goes to {place} too; give each an "out" of its own')
        places.add(place.resolve())
        members[str(place)] = (place, settings)
    return members


def train_fleet(
    path: Path,
    common: dict[str, Any],
    resume: bool,
    asked: tuple[str, int],
    place: torch.device,
    screen: Console,
    stop_at: float | None = None,
) -> int:
    """Train, evaluate and compare the runs of a file; returns how many diverged.

    Arguments:
        path: the file.
        common: settings of all runs.
        resume: go on with what was begun.
        asked: what the runs are evaluated on, and with how many draws.
        place: the device.
        screen: where it is shown.
        stop_at: time, by ``time.monotonic``, at which to stop as by a signal.
    """
    members: dict[str, Member] = {}
    shelf: Shelf = {}
    for name, (out, settings) in read_fleet(path, common).items():
        made, trained = resolve(begun_with(out, settings) if resume else settings)
        members[name] = member_of(Recipe(**made), Config.from_dict(trained), out, place, shelf)
    for member in {id(member.data): member for member in members.values()}.values():
        tell_frames(member.data.name, member.data, screen)
    with shown(screen, *members) as callbacks:
        each = {name: [callbacks[name]] for name in members}
        runs = fit_fleet(members, resume=resume, callbacks=each, stop_at=stop_at)
    rows = {}
    for name, run in runs.items():
        if isinstance(run, DivergedError):
            screen.print(f"{name}: {run}", highlight=False, soft_wrap=True)
            continue
        member = members[name]
        done = Trained(RunFolder(member.out), run.net, member.data, member.config, run.result["steps"])
        rows[name] = metrics_of(evaluated(done, *asked, screen))
    if rows:
        parts = dict.fromkeys(_words(members[name], asked[0]) for name in rows)
        screen.print(evaluation_table(rows, f"{len(rows)} runs, {' and '.join(parts)}"))
    return len(runs) - len(rows)


def _words(member: Member, part: str) -> str:
    """What a member was evaluated on."""
    return NO_TEST if part == "test" and not member.data.has_test else WORDS[part]
