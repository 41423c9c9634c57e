"""The record of a run: what tables and figures need of it, without its checkpoints and without paths of the machine.

A folder of records stands for the runs themselves wherever nothing has to be computed from their networks.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._files import sync_folder
from ..errors import RunError
from . import durable
from .environment import portable
from .identity import settings_digest
from .lines import as_lines
from .run_folder import RunFolder
from .state import digest

Document = dict[str, Any]

ALWAYS = ("lr_search.json", "events.jsonl")
ENDED = ("metrics.jsonl", "result.json")
MEASURED = (
    *("evaluation-train.json", "evaluation-val.json", "evaluation-test.json"),
    *("robustness-test.json", "baselines-test.json", "bn-noise.json", "bn-scaling.json"),
)
"""What was found out about the network at the end."""
KEPT = {"config.json", ".lock", *ALWAYS, *ENDED, *MEASURED}
"""All that a record may hold."""
TEMPORARY = ".record-"


def record(runs: Sequence[Path], to: Path) -> list[Path]:
    """Write ``TO/NAME`` from each run folder of that name; returns what was written.

    Of a run that has not ended it holds the settings and the learning-rate search, from which it can begin anew. A
    record of the same run that is there already is replaced; measurements that only the old one has are kept.

    Raises:
        RunError: there is nothing to keep yet, or something else is in the way; nothing has changed then.
    """
    _put_back(to)
    targets = [to / Path(os.path.abspath(run)).name for run in runs]
    for target in targets:
        if targets.count(target) > 1:
            raise RunError(f"two runs are called {target.name}: record them in different folders")
    contents = [_content(run, target) for run, target in zip(runs, targets, strict=True)]
    if (to / "config.json").exists():
        raise RunError(f"--to {to} is a run itself: choose another folder")
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"--to {to} is no folder and cannot be made one ({error.strerror}): choose another") from error
    for target, content in zip(targets, contents, strict=True):
        _replace(target, content)
    return targets


def _content(run: Path, target: Path) -> dict[str, bytes]:
    """Files of the record of a run; RunError where it must not go to the target."""
    folder = RunFolder(run)
    about, result = folder.about(), _read(folder.path / "result.json")
    if result is None and not (folder.path / "lr_search.json").exists():
        raise RunError(f"{run} has not ended, and there was no learning-rate search: there is nothing to record yet")
    found = {"config.json": durable.sealed(_portable(about, result is not None))}
    names = [*ALWAYS, *(ENDED if result is not None else ()), *_measured(folder, result)]
    found |= {name: (folder.path / name).read_bytes() for name in names if (folder.path / name).exists()}
    if result is not None:
        found["result.json"] = durable.sealed(_without_paths(result))
    if result is not None and result["state"] == "finished":
        found["metrics.jsonl"] = as_lines(folder.history())  # of its checkpoint, which has a checksum
    return {**_before(target, folder, about, result), **found}


def _measured(folder: RunFolder, result: Document | None) -> list[str]:
    """Documents about the network with which the run has ended; what was measured before is not of this run's end."""
    if result is None:
        return []
    last = folder.peek()
    if last is None:  # a record, which has no others
        return list(MEASURED)
    if result["state"] == "finished" and last[0].step != result["steps"]:
        raise RunError(f"the last checkpoint of {folder.path} is damaged: `bayesnorm train --resume` makes it anew")
    network = digest({k.removeprefix("net."): v for k, v in last[0].tensors.items() if k.startswith("net.")})
    return [name for name in MEASURED if (_read(folder.path / name) or {}).get("network") == network]


def _before(target: Path, folder: RunFolder, about: Document, result: Document | None) -> dict[str, bytes]:
    """What an older record of the same run measured; RunError if something else is in the way."""
    if not (target.is_symlink() or target.exists()):
        return {}
    away = "remove it, or choose another --to"
    if target.resolve() == folder.path.resolve():
        raise RunError(f"{target} is the run itself: choose another --to")
    there = RunFolder(target)
    if target.is_symlink() or not target.is_dir() or not {path.name for path in target.iterdir()} <= KEPT:
        raise RunError(f"{target} is no record: {away}")
    if not (target / "config.json").exists():
        raise RunError(f"{target} is no record, as it has no config.json: {away}")
    if settings_digest(there.about()) != settings_digest(about):
        raise RunError(f"{target} is the record of a run with other settings: {away}")
    ended = _read(target / "result.json")
    if ended is None:
        return {}
    if result is None:
        raise RunError(f"{target} is the record of a run that has ended, {folder.path} has not: {away}")
    if (ended["state"], ended.get("digest")) != (result["state"], result.get("digest")):
        raise RunError(f"{target} is the record of a run that has ended otherwise: {away}")
    return {name: (target / name).read_bytes() for name in MEASURED if (target / name).exists()}


def _replace(target: Path, content: dict[str, bytes]) -> None:
    """Write a folder so that the old one is there until the new one is whole."""
    place = Path(tempfile.mkdtemp(dir=target.parent, prefix=TEMPORARY))
    made, old = (place / part / target.name for part in ("new", "old"))
    try:
        for path in (made, old.parent):
            path.mkdir(parents=True)
        for name, data in content.items():
            durable.write(made / name, data)
        if target.exists():
            target.rename(old)
        made.rename(target)
    finally:
        _put_back(target.parent)


def _put_back(folder: Path) -> None:
    """Clear away what was written only in part, here or by a killed process; an old record stays if there is no new."""
    for place in folder.glob(f"{TEMPORARY}*"):
        for old in place.glob("old/*"):
            if not (folder / old.name).exists():
                old.rename(folder / old.name)
        sync_folder(folder)
        shutil.rmtree(place)


def _read(path: Path) -> Document | None:
    """A sealed document; DamagedError if it is not what was written."""
    return durable.read_sealed(path) if path.exists() else None


def _portable(about: Document, ended: bool) -> Document:
    """The configuration without what only the machine knows: folders are called by their names."""
    kept = {key: value for key, value in about.items() if key != "record"}
    recipe = dict(about["recipe"])
    if recipe.get("directory"):
        recipe["directory"] = Path(recipe["directory"]).name
    environment = portable(about["environment"])
    return {**kept, "recipe": recipe, "environment": environment, **({"record": True} if ended else {})}


def _without_paths(result: Document) -> Document:
    """The message of a run that diverged names its last checkpoint."""
    if "message" not in result:
        return result
    return {**result, "message": re.sub(r"(checkpoint: ).*?([^/\\]+\.safetensors)", r"\1\2", result["message"])}
