"""Which run it is: settings compared in words, and as a digest, without those that change no result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import durable
from .config import OPERATIONAL

SILENT = {"recipe.reduce": 1}
"""Settings that came after digests had been published, with what runs did before: with that they are not in them."""
LATER = {
    **{"recipe.dropout": 0.0, "recipe.final_activation": False, "recipe.standardize": True},
    **{"config.engine": "auto", "config.eval_every": 1},
    **SILENT,
}
"""Settings that runs of earlier versions do not have, with what they did then."""


def difference(stored: dict[str, Any], asked: dict[str, Any], path: str = "") -> str | None:
    """The first setting in which two configurations differ, in words; those that change no result do not count."""
    for key in dict.fromkeys((*asked, *stored)):
        if key in OPERATIONAL or f"{path}{key}" in OPERATIONAL:
            continue
        before, now = (settings.get(key, LATER.get(f"{path}{key}")) for settings in (stored, asked))
        if isinstance(before, dict) and isinstance(now, dict):
            inner = difference(before, now, f"{path}{key}.")
            if inner is not None:
                return inner
        elif before != now:
            return f"{path}{key} was {before!r}, now it is {now!r}"
    return None


def effective(about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """``{"config": ..., "recipe": ...}`` of a run, without settings that change no result."""
    parts = {part: about.get(part) or {} for part in ("config", "recipe")}
    added = {part: {k.removeprefix(f"{part}."): v for k, v in LATER.items() if k.startswith(part)} for part in parts}
    return {
        part: {key: value for key, value in {**added[part], **found}.items() if key not in OPERATIONAL}
        for part, found in parts.items()
    }


def settings_digest(about: dict[str, Any]) -> str:
    """SHA-256 of the settings of a run, without those that change no result."""
    said = {
        part: {key: value for key, value in found.items() if (f"{part}.{key}", value) not in SILENT.items()}
        for part, found in effective(about).items()
    }
    return durable.sha256(json.dumps(said, sort_keys=True).encode())


ADDED = ("augment", "objects")
"""What came later to be said about the data of a run."""
IDENTITY = ("config", "recipe", "data", "network")
"""What makes a run: settings first, as they explain differences of the rest."""


def same(stored: dict[str, Any], asked: dict[str, Any]) -> str | None:
    """The first difference between two runs, in words.

    Runs of earlier versions do not say all about their data; what they do not say is not compared.
    """
    before, now = ({key: about.get(key) for key in IDENTITY} for about in (stored, asked))
    said = before["data"] or {}
    now["data"] = {key: value for key, value in (now["data"] or {}).items() if key in said or key not in ADDED}
    return difference(before, now)
