"""A finished or interrupted run, read back from its folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.base import Data
from ..errors import RunError
from .config import Config
from .events import Record
from .identity import same
from .recipe import NO_FILES, Recipe, prepare
from .run_folder import RunFolder
from .state import fill_


@dataclass(frozen=True)
class Loaded:
    """A run as it is on disk.

    Arguments:
        net: the network at the last checkpoint, in evaluation mode.
        data: its data.
        recipe: what was trained on what.
        config: how.
        step: steps taken.
        history: a record per epoch.
        result: how it ended; None if it has not.
        folder: where it is.
    """

    net: nn.Module
    data: Data
    recipe: Recipe
    config: Config
    step: int
    history: list[Record]
    result: dict[str, Any] | None
    folder: RunFolder


def load(path: str | Path, directory: str | None = None, device: torch.device | str = "cpu") -> Loaded:
    """Read a run that was made by a recipe.

    Arguments:
        path: its folder.
        directory: where the data is, if it was moved.
        device: where network and data go.
    """
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise RunError(f"{path} is no run: there is no such folder; `bayesnorm runs` lists the runs")
    about = folder.about()
    recipe = recipe_of(about, folder.path, directory)
    config = Config.from_dict(about["config"])
    found = folder.peek()
    if found is None:
        if folder.is_record():
            raise RunError(f"{folder.path} is a record, which has no network: take the run that it was made of")
        state = (folder.result() or {}).get("state")
        how = "it diverged; train anew with another --out" if state == "diverged" else "train it with --resume"
        raise RunError(f"{folder.path} has no checkpoint: {how}")
    checkpoint, history = found
    other = same(about, checkpoint.about)
    if other is not None:
        raise RunError(f"{checkpoint.path} is of another run: {other} there; put the checkpoints of this run back")
    if recipe.directory is not None and not Path(recipe.directory).exists():
        raise RunError(
            f"{recipe.directory}, where the data of {folder.path} should be, is not there: name its place with --dir "
            "(in Python: directory=)"
        )
    data, net = prepare(recipe, config, torch.device(device), initialize=False)
    stored = about["data"]
    if data.digest() != stored["digest"] or data.objects_digest() != stored.get("objects", data.objects_digest()):
        raise RunError(f"{folder.path} was trained on other data than what {recipe.directory or recipe.data} holds now")
    fill_(
        {f"net.{name}": value for name, value in net.state_dict().items()},
        {name: value for name, value in checkpoint.tensors.items() if name.startswith("net.")},
    )
    return Loaded(net.eval(), data, recipe, config, checkpoint.step, history, folder.result(), folder)


def begun_with(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for going on with a run: those with which it was begun, if it was, as far as these leave them open."""
    folder = RunFolder(path)
    if not folder.exists():
        return settings
    about = folder.about()
    begun = {**recipe_of(about, path).as_dict(), **about["config"]}
    if settings.get("data", begun["data"]) != begun["data"]:  # whose other settings would be taken for the new ones'
        was = f"recipe.data was {begun['data']!r}, now it is {settings['data']!r}"
        raise RunError(f"{path} is another run: {was}; repeat its options, or choose another --out")
    return {**begun, **settings}


def recipe_of(about: dict[str, Any], path: Path, directory: str | None = None) -> Recipe:
    """The recipe in the configuration of a run, with the data elsewhere if it has files and that is given."""
    if not about["recipe"]:
        raise RunError(f"{path} was made from Python with a network of its own: load its checkpoint there")
    known = {field.name for field in dataclasses.fields(Recipe)}
    unknown = sorted(set(about["recipe"]) - known)
    if unknown:
        raise RunError(f"{path} is of another version of bayesnorm: it has the setting {unknown[0]!r}")
    settings = about["recipe"]
    place = None if settings.get("data", Recipe.data) in NO_FILES else directory or settings.get("directory")
    return Recipe(**{**settings, "directory": place})
