"""What a run has where nothing else was asked for: the settings that belong to its data set."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .config import Config
from .kinds import number
from .recipe import Recipe

Default = dict[str, Any]

SEARCHED: Default = {"clip": 1.0, "warmup_steps": 100, "lr_epochs": 50}
"""Of the cells, whose epochs have six steps: five of them, without a warm-up, tell nothing (docs/log.md). Not
``lr_anneal``: in 50 epochs, a trial would have fallen to a tenth when the warm-up is over, and not test its rate."""

DEFAULTS: dict[str, Default] = {
    "digits": {"model": "all-cnn", "width": 0.125, "padding": "same", "epochs": 50},
    "cifar10": {"model": "all-cnn", "epochs": 1200},
    "cells": {
        "model": "cell-net",
        "epochs": 3000,
        "batch": 2,
        "optimizer": "adam",
        "kl_factor": 0.1,
        "lr_low": 1e-5,
        "lr_high": 0.1,
        "eval_every": 10,
        **SEARCHED,
    },
    "strokes": {
        "model": "cell-net",
        "width": 0.5,
        "epochs": 30,
        "batch": 2,
        "clip": 1.0,
        "optimizer": "adam",
        "kl_factor": 0.1,
        "lr_low": 1e-5,
        "lr_high": 0.1,
    },
    "folder": {"padding": "same", "epochs": 100},
}
"""What the paper does with a data set, or what fits it; ``Recipe`` and ``Config`` have the rest."""

SEGMENTATION = ("cells", "strokes")
"""Classes of pixels: the learning rate falls to a tenth in a third of the epochs."""


def resolve(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of ``Recipe`` and of ``Config`` from those that were given, with the defaults of the data set.

    >>> resolve({"data": "digits", "epochs": 3})[1]
    {'epochs': 3}
    """
    data = given.get("data", "digits")
    merged = {**(DEFAULTS.get(data, {}) if isinstance(data, str) else {}), **given}
    if data in SEGMENTATION and number(merged.get("epochs")):
        merged.setdefault("decay_epochs", merged["epochs"] / 3)
    if merged.get("norm") == "none":
        merged.setdefault("scale", "point")
    ours = {field.name for field in dataclasses.fields(Recipe)}
    theirs = {field.name for field in dataclasses.fields(Config)}
    unknown = sorted(set(merged) - ours - theirs)
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}")
    if isinstance(merged.get("directory"), str | Path):
        merged["directory"] = str(Path(merged["directory"]).absolute())
    return {k: v for k, v in merged.items() if k in ours}, {k: v for k, v in merged.items() if k in theirs}
