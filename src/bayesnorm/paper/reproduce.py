"""A figure of the paper from its runs: measured, drawn and written, beside what the paper printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..report.drawing import replace, save
from ..train.environment import typed, version
from ..train.identity import settings_digest
from .exhibit import Exhibit
from .lab import Lab
from .wanted import Wanted


def reproduce(exhibit: Exhibit, lab: Lab) -> dict[str, Any]:
    """Train what is missing, then write ``ID.json``, ``ID.svg`` and ``ID.png`` into the folder of the lab.

    Returns:
        what is in ``ID.json``.
    """
    wanted, also = list(exhibit.wanted(lab.preset)), exhibit.also(lab.preset)
    lab.train([*wanted, *also])
    if not exhibit.partial:
        lab.complete(wanted)
    document: dict[str, Any] = {
        "id": exhibit.id,
        "title": exhibit.title,
        "claim": exhibit.claim,
        "preset": lab.preset.name,
        "set": lab.preset.changes,
        "protocol": lab.preset.about,
        "versions": {name: version(name) for name in ("bayesnorm", "torch")},
        "runs": {
            run.name(lab.preset): _about(lab, run) for run in dict.fromkeys([*wanted, *also]) if lab.lost(run) is None
        },
        **_diverged(exhibit, lab),
        "paper": exhibit.paper,
        "measured": exhibit.measure(lab),
        **exhibit.more(lab),
    }
    replace(lab.out / f"{exhibit.id}.json", (json.dumps(document, allow_nan=False) + "\n").encode())
    save(exhibit.draw(document["measured"]), lab.out / exhibit.id)
    return document


def _about(lab: Lab, run: Wanted) -> dict[str, Any]:
    folder = lab.folder(run)
    about, result = folder.about(), folder.result() or {}
    place = about["environment"]
    return {
        "epochs": result["epochs"],
        "lr": result["lr"],
        "batch": about["config"]["batch"],
        "seed": about["config"]["seed"],
        "config_digest": settings_digest(about),
        "digest": result["digest"],
        "device": place.get("device"),
        "torch": place.get("versions", {}).get("torch"),
        "command": typed(place.get("command") or []),
    }


def _diverged(exhibit: Exhibit, lab: Lab) -> dict[str, Any]:
    """Of a figure that shows them, the runs that diverged: at which step, at which learning rate and how."""
    if not exhibit.partial:
        return {}
    lost = [run for run in exhibit.wanted(lab.preset) if lab.lost(run) is not None]
    results = {run.name(lab.preset): lab.folder(run).result() or {} for run in lost}
    return {"diverged": {name: {key: of.get(key) for key in ("step", "lr", "message")} for name, of in results.items()}}


def comparison(document: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, measured and printed value of every number."""
    measured, paper = document["measured"]["numbers"], document["paper"]
    return [(name, measured.get(name), paper.get(name)) for name in dict.fromkeys((*measured, *paper))]


def files_of(out: Path, id: str) -> list[Path]:
    """What a reproduction writes."""
    return [out / f"{id}{suffix}" for suffix in (".svg", ".png", ".json")]
