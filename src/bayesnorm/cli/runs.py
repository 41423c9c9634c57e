"""``bayesnorm runs``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import RunError
from ..evaluate.evaluation import draws_of
from ..report.drawing import replace
from ..report.listing import listed
from ..train.events import measured
from ..train.methods import method_of
from ..train.run_folder import RunFolder
from .options import Debug
from .output import refuse_unfit
from .tables import console, new_table


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    json_: Annotated[
        Path | None,
        typer.Option("--json", help="Also write them to a file: settings, curves, all measures, checksums, commands."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Table of the runs in a folder: method, epochs, accuracy, NLL, state.

    Accuracy and NLL (single pass, and with the most draws) are those of the test set where the run was evaluated, else
    (val) of the validation set.
    """
    if json_ is not None:
        refuse_unfit("--json", json_)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; `bayesnorm train` makes runs/, or name another")
    found = sorted(path.parent for path in folder.rglob("config.json"))
    table = new_table()
    for name in ("run", "data", "method"):
        table.add_column(name, overflow="fold")
    for name in ("epochs", "accuracy", "NLL", "NLL MC"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", min_width=9)
    for path in found:
        table.add_row(*row(path, folder))
    if not found:
        raise RunError(f"{folder} holds no run; `bayesnorm train --out {folder}/NAME` makes one")
    console().print(table)
    if json_ is not None:
        document = {"runs": [listed(path, _name(path, folder)) for path in found]}
        replace(json_, (json.dumps(document, allow_nan=False) + "\n").encode())


def row(path: Path, base: Path) -> list[str]:
    """One run in words."""
    name, folder = _name(path, base), RunFolder(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            about, result = folder.about(), folder.result()
            history = folder.history()
        except RunError as error:
            return [name, "", "", "", "", "", "", f"damaged: {error}"]
        test = folder.read("evaluation-test.json")
    state = result["state"] if result else "running" if folder.is_held() else "resumable"
    if state == "running":
        history = folder.lines()
    if test is not None and history and test["step"] < history[-1]["step"]:
        test = None  # the run has gone on since
    epochs = f"{len(history)}/{about['config']['epochs']}"
    return [name, about["data"]["name"], method_of(about), epochs, *_scores(history, test), state]


def _name(path: Path, base: Path) -> str:
    return str(path.relative_to(base)) if path != base else path.name


def _scores(history: list[dict[str, Any]], test: dict[str, Any] | None) -> list[str]:
    if test is not None:
        ways = test["metrics"]
        most = max(ways, key=draws_of)
        return [
            f"{100 * ways['single']['accuracy']:.2f} %",
            _number(ways["single"]["nll"]),
            _number(ways[most]["nll"]) if draws_of(most) else "-",
        ]
    known = measured(history)
    if known:
        return [f"(val) {100 * known[-1]['val_accuracy']:.2f} %", f"(val) {_number(known[-1]['val_nll'])}", "-"]
    return ["-", "-", "-"]


def _number(value: float | None) -> str:
    return "inf" if value is None else f"{value:.4f}"
