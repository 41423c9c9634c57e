"""The record of a run: what tables and figures need of it, without its checkpoints and without paths of the machine.

A folder of records stands for the runs themselves wherever nothing has to be computed from their networks.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from ..errors import RunError
from . import checkpoint, durable
from .run_folder import RunFolder, settings_digest

ENDED = (
    *("metrics.jsonl", "result.json", "evaluation-train.json", "evaluation-val.json", "evaluation-test.json"),
    *("robustness-test.json", "bn-noise.json", "bn-scaling.json"),
)
"""Files that say something of the end of a run."""
ALWAYS = ("lr_search.json", "events.jsonl")


def record(run: Path, to: Path) -> Path:
    """Write ``TO/NAME`` from a run folder of that name; returns its path.

    Of a run that has not ended it holds the settings and the learning-rate search, from which it can begin anew. A
    record of the same run that is there already is replaced.

    Raises:
        RunError: there is nothing to keep yet, or something else is in the way; nothing has changed then.
    """
    folder = RunFolder(run)
    about, result = folder.about(), folder.result()
    if result is None and not (folder.path / "lr_search.json").exists():
        raise RunError(f"{run} has not ended, and there was no learning-rate search: there is nothing to record yet")
    target = to / folder.path.resolve().name
    _refuse_other(target, about)
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to, prefix=".record-") as place:
        made = Path(place) / target.name
        made.mkdir()
        durable.write(made / "config.json", durable.sealed(_portable(about, result is not None)))
        for name in (*ALWAYS, *(ENDED if result is not None else ())):
            if (folder.path / name).exists():
                shutil.copyfile(folder.path / name, made / name)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    return target


def _refuse_other(target: Path, about: dict[str, Any]) -> None:
    """Only a record of the same run may be replaced."""
    if not target.exists():
        return
    there = RunFolder(target)
    if checkpoint.latest(there.checkpoints) is not None:
        raise RunError(f"{target} is a run with checkpoints, no record: choose another --to")
    if settings_digest(there.about()) != settings_digest(about):
        raise RunError(f"{target} is the record of a run with other settings: remove it, or choose another --to")


def _portable(about: dict[str, Any], ended: bool) -> dict[str, Any]:
    """The configuration without what only the machine knows: folders are called by their names."""
    recipe, environment = dict(about["recipe"]), dict(about["environment"])
    if recipe.get("directory"):
        recipe["directory"] = Path(recipe["directory"]).name
    environment["command"] = [_name(word) for word in environment.get("command") or []]
    environment.pop("platform", None)
    return {**about, "recipe": recipe, "environment": environment, **({"record": True} if ended else {})}


def _name(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word
