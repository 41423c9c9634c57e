"""Runs as data: what each was, how it went and what was measured, for a file that keeps a study."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..train.config import OPERATIONAL, Config
from ..train.environment import typed
from ..train.events import measured
from ..train.methods import method_name
from ..train.recipe import Recipe, resolve
from ..train.run_folder import RunFolder, settings_digest

Document = dict[str, Any]

PARTS = ("val", "test")
MEASURES = ("accuracy", "nll", "calibrated_nll", "ece", "aurc")
CURVE = ("train_nll", "train_eval_nll", "val_nll", "val_accuracy")
SAID = {"data", "norm", "scale", "project", "epochs", "seed", "lr"}
"""Settings with a key of their own."""


def listed(path: Path, name: str) -> Document:
    """One run.

    ``set`` has the settings that are not those of its data set, ``curve`` the epochs that were measured, ``val`` and
    ``test`` the last evaluation by each way of predicting; None where there is none.
    """
    folder = RunFolder(path)
    about, result, history = folder.about(), folder.result() or {}, folder.history()
    recipe, config, environment = about["recipe"] or {}, about["config"], about.get("environment") or {}
    known = measured(history)
    return {
        "run": name,
        "data": about["data"]["name"],
        "method": method_name(recipe["norm"], recipe["scale"], config["project"]) if recipe else "own network",
        "epochs": len(history),
        "of": config["epochs"],
        "seed": config["seed"],
        "lr": history[0]["lr"] if history else config["lr"],
        "searched": config["lr"] == "auto",
        "set": _changed(recipe, config),
        "state": result.get("state", "unfinished"),
        **{part: _evaluated(folder, part) for part in PARTS},
        "sigma_over_s": known[-1]["sigma_over_s"] if known else None,
        "curve": {name: [record[name] for record in known] for name in ("epoch", *CURVE)},
        "config_digest": settings_digest(about),
        "state_digest": result.get("digest"),
        "device": environment.get("device"),
        "seconds": folder.seconds(),
        "command": typed(environment.get("command") or []),
    }


def _changed(recipe: Document, config: Document) -> Document:
    """Settings that differ from what the data set has anyway, without those that change no result."""
    usual_recipe, usual_config = resolve({"data": recipe["data"], "norm": recipe["norm"]} if recipe else {})
    usual = {field.name: field.default for cls in (Recipe, Config) for field in dataclasses.fields(cls)}
    usual |= {**usual_recipe, **usual_config}
    found = {**recipe, **config}
    named = {name: value for name, value in found.items() if name not in SAID | OPERATIONAL}
    return {name: value for name, value in named.items() if value != usual.get(name)}


def _evaluated(folder: RunFolder, part: str) -> Document | None:
    document = folder.read(f"evaluation-{part}.json")
    if document is None:
        return None
    return {
        way: {measure: values[measure] for measure in MEASURES if values.get(measure) is not None}
        for way, values in document["metrics"].items()
    }
