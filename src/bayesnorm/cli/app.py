"""All commands, and how their errors look."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated

import typer

from ..errors import BayesnormError, DivergedError, RunError, StoppedError, is_out_of_memory
from ..train.environment import version
from . import cells, data, demo, ensemble, evaluate, publish, record, report, reproduce, runs, train
from .world import distributed

app = typer.Typer(
    help="Normalization layers whose noise is learned: train, evaluate and compare networks, reproduce the paper.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("lr")(train.lr)
app.command("eval")(evaluate.evaluate)
app.command("ensemble")(ensemble.ensemble)
app.command("data")(data.data)
app.command("runs")(runs.runs)
app.command("record")(record.record)
app.command("publish")(publish.publish)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce_)
app.command("cells-table")(cells.table)


def _version(shown: bool) -> None:
    if shown:
        print(f"bayesnorm {version('bayesnorm') or '(not installed)'}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Normalization layers whose noise is learned."""


def run(args: list[str]) -> int:
    """Run a command and turn whatever goes wrong into one line and an exit status."""
    debug = "--debug" in args
    warnings.showwarning = _warn
    # cuBLAS reads this when it starts; without it matrix products on CUDA are not deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        with distributed():
            return int(typer.main.get_command(app).main(args, "bayesnorm", standalone_mode=False) or 0)
    except Exception as error:
        message, status = _explained(error)
        if debug:
            traceback.print_exc()
        elif isinstance(error, RunError | DivergedError | StoppedError) and os.environ.get("RANK", "0") != "0":
            return status  # all processes have it, the first says it
        return _fail(message, status)


def _explained(error: Exception) -> tuple[str, int]:
    """One line and an exit status."""
    usage = getattr(error, "format_message", None)
    if usage is not None:
        return str(usage()).replace("Value error, ", ""), int(getattr(error, "exit_code", 2))
    if type(error).__name__ == "Abort":  # what click makes of Ctrl-C
        return "interrupted", 130
    if isinstance(error, BayesnormError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}", 1
    if isinstance(error, ValueError):
        return str(error), 1
    what = str(error).strip().splitlines() or [""]
    if is_out_of_memory(error):
        return f"out of memory: {what[0]}; try smaller images, batches or networks (--debug shows where)", 1
    return f"{type(error).__name__}: {what[0]} (--debug shows where)", 1


def _fail(message: str, status: int) -> int:
    if message.startswith("Usage:"):  # no command was given
        print(message, file=sys.stderr)
    elif message:
        print(f"bayesnorm: {' '.join(message.split())}", file=sys.stderr)
    return status


def _warn(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    print(f"bayesnorm: warning: {message}", file=sys.stderr)
