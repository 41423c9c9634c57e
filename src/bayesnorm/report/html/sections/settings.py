"""What was run: an overview of the runs, their settings, and where they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ....train.events import measured
from ...summary import Summary
from .. import looks
from ..figure import boxed, folded, note, section, table
from ..markup import Html, tag
from ..numbers import MISSING, number, show


def overview(runs: Sequence[Summary]) -> Html:
    """The section that says what was trained, on what, and how far."""
    body = [
        tag(
            "tr",
            tag("th", looks.who(index, run.name), scope="row"),
            [tag("td", cell, class_="word") for cell in (run.method, run.data, state(run))],
            [tag("td", cell, class_="number") for cell in _numbers(run)],
        )
        for index, run in enumerate(runs)
    ]
    words, numbers = ("run", "method", "data", "state"), ("epochs", "learning rate", "val. accuracy", "val. NLL")
    head = [tag("th", name, scope="col") for name in words]
    heads = [tag("th", name, scope="col", class_="number") for name in numbers]
    lead = "What was trained, and how far; validation figures are the last, in a single pass."
    content = boxed("The runs", tag("thead", tag("tr", head, heads)), tag("tbody", body), class_="sortable")
    return section("runs", "Runs", lead, content)


def state(run: Summary) -> str:
    """How far a run has come, in a word."""
    return str(run.result.get("state", "finished")) if run.result else "unfinished"


def _numbers(run: Summary) -> list[str]:
    last = next(reversed(measured(run.history)), {})
    rate = number((run.result or {}).get("lr")) or number(run.config.get("lr"))
    loss = number(last.get("val_nll"))
    return [
        f"{len(run.history)} / {run.config.get('epochs', MISSING)}",
        show(rate),
        show(number(last.get("val_accuracy")), "percent"),
        MISSING if loss is None else f"{loss:.4f}",
    ]


def configuration(runs: Sequence[Summary]) -> Html:
    """The section of settings: first those that differ."""
    settings = [flat({"config": run.config, "recipe": run.recipe}) for run in runs]
    lead = "Settings of training (config) and of network and data (recipe)."
    changing = different(settings)
    content: list[Html] = []
    if len(runs) > 1 and changing:
        content.append(tag("h3", "Where the runs differ"))
        content.append(_compared([run.name for run in runs], settings, changing, "Settings in which the runs differ"))
    elif len(runs) > 1:
        content.append(note("All runs have the same settings."))
    for run, own in zip(runs, settings, strict=True):
        rows = [[key, value] for key, value in own.items()]
        content.append(
            folded(f"All settings of {run.name}", table(["setting", "value"], rows, f"Settings of {run.name}", "words"))
        )
    return section("configuration", "Configuration", lead, *content)


def environment(runs: Sequence[Summary]) -> Html:
    """The section of versions, hardware and commands."""
    places = [flat(run.environment) for run in runs]
    keys = list(dict.fromkeys(key for place in places for key in place))
    changing = different(places)
    same = [[key, places[0][key]] for key in keys if key not in changing]
    content: list[Html] = []
    if same:
        title = "The same for all runs" if len(runs) > 1 else "Where the run was made"
        content.append(table(["what", "value"], same, title, "words"))
    if changing:
        content.append(tag("h3", "Where the runs differ"))
        content.append(_compared([run.name for run in runs], places, changing, "Environments in which the runs differ"))
    if not keys:
        content.append(note("Nothing is known about the machines."))
    return section(
        "environment", "Environment", "Versions, hardware and commands: what is needed to repeat the runs.", *content
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by their path, in words.

    >>> flat({"config": {"lr": "auto", "clip": None}, "command": ["bayesnorm", "demo"]})
    {'config.lr': 'auto', 'config.clip': 'none', 'command': 'bayesnorm demo'}
    """
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = _word(value)
    return found


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def different(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys whose values are not the same everywhere."""
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({own.get(key) for own in settings}) > 1]


def _compared(names: Sequence[str], settings: Sequence[Mapping[str, str]], keys: Sequence[str], caption: str) -> Html:
    rows = [[key, *(own.get(key, MISSING) for own in settings)] for key in keys]
    heads = [looks.who(index, name) for index, name in enumerate(names)]
    return table(["setting", *heads], rows, caption, "words")
