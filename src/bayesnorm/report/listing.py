"""Runs as data: what each was, how it went and what was measured, for a file that keeps a study."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..evaluate.panel import NAMES
from ..train.config import OPERATIONAL, Config
from ..train.defaults import resolve
from ..train.documents import evaluation_name
from ..train.environment import typed
from ..train.events import measured
from ..train.identity import settings_digest
from ..train.job import lr_of
from ..train.recipe import Recipe
from ..train.run_folder import RunFolder
from .summary import read

Document = dict[str, Any]

PARTS = ("val", "test")
CURVE = ("train_nll", "train_eval_nll", "val_nll", "val_accuracy")
SAID = {"data", "norm", "scale", "project", "epochs", "seed", "lr"}
"""Settings with a key of their own."""


def listed(path: Path, name: str) -> Document:
    """One run; of a damaged one, what is wrong.

    ``set`` has the settings that are not those of its data set, ``curve`` the epochs that were measured, ``val`` and
    ``test`` the evaluation of its last state by each way of predicting; None where there is none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _listed(path, name)
        except RunError as error:
            return {"run": name, "state": f"damaged: {error}"}


def _listed(path: Path, name: str) -> Document:
    found, folder = read(path, name), RunFolder(path)
    config, history, result = found.config, found.history, found.result or {}
    known = measured(history)
    return {
        "run": name,
        "data": found.data,
        "method": found.method,
        "epochs": len(history),
        "of": config["epochs"],
        "seed": config["seed"],
        "lr": lr_of(folder, Config.from_dict(config)) or "auto",
        "searched": config["lr"] == "auto",
        "set": _changed(found.recipe, config),
        "state": result.get("state", "unfinished"),
        **{part: _evaluated(folder, part, history[-1]["step"] if history else 0) for part in PARTS},
        "sigma_over_s": known[-1]["sigma_over_s"] if known else None,
        "curve": {name: [record[name] for record in known] for name in ("epoch", *CURVE)},
        "config_digest": settings_digest(folder.about()),
        "state_digest": result.get("digest"),
        "device": found.environment.get("device"),
        "seconds": folder.diary.seconds(),
        "command": typed(found.environment.get("command") or []),
    }


def _changed(recipe: Document, config: Document) -> Document:
    """Settings that differ from what the data set has anyway, without those that change no result."""
    usual_recipe, usual_config = resolve({"data": recipe["data"], "norm": recipe["norm"]} if recipe else {})
    usual = {field.name: field.default for cls in (Recipe, Config) for field in dataclasses.fields(cls)}
    usual |= {**usual_recipe, **usual_config}
    found = {**recipe, **config}
    named = {name: value for name, value in found.items() if name not in SAID | OPERATIONAL}
    return {name: value for name, value in named.items() if value != usual.get(name)}


def _evaluated(folder: RunFolder, part: str, step: int) -> Document | None:
    """Not what was measured before the run went on."""
    document = folder.read(evaluation_name(part))
    if document is None or document["step"] < step:
        return None
    return {
        way: {measure: values[measure] for measure in NAMES if values.get(measure) is not None}
        for way, values in document["metrics"].items()
    }
