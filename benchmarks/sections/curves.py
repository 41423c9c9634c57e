"""Whether the engine learns what the reference learns: validation curves of several seeds of both.

The reference is the step of the plain loop in fp32. In a CUDA graph (``--reference captured``, not compiled) it is an
order of magnitude faster than launched piece by piece, and is first held against the plain loop, loss by loss.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from options import Options
from rows import Row, Rows
from trainers import images, together

from bayesnorm.data.base import Data
from bayesnorm.data.cifar10 import cifar10
from bayesnorm.train import Config
from bayesnorm.train.numerics import numerics
from sections.engine import config_of

CHECKED = 100
MEASURES = ("val_nll", "val_accuracy", "train_nll")
RUN_COLUMNS = {name: name for name in ("group", "seed", "epoch", *MEASURES)}
COLUMNS = {
    "epoch": "epoch",
    "measure": "measure",
    "engine_mean": "engine",
    "reference_mean": "reference",
    "difference": "difference",
    "standard_error": "std. error",
    "z": "z",
}
CHECK_COLUMNS = {"step": "step", "plain": "plain", "captured": "captured", "relative": "relative"}


def run(options: Options) -> None:
    """Check the reference, train all seeds of both, compare epoch by epoch; runs of earlier calls count if alike."""
    data = load(options)
    reference = Config(engine=options.reference)  # type: ignore[arg-type]
    configs = {"engine": config_of(options.engines[-1], options.precision[0], options), "reference": reference}
    batch = 4 if options.tiny else 32
    recipe = {"batch": batch, "epochs": options.epochs, "lr": options.lr, "train_eval": 0}
    configs = {name: replace(config, **recipe) for name, config in configs.items()}  # type: ignore[arg-type]
    if options.reference == "captured" and "reference" in options.groups:
        check(data, configs["reference"], options)
    alike = {"method": options.method, "lr": options.lr, "epochs": options.epochs}
    rows = Rows("curves_runs", RUN_COLUMNS, (*alike, "group", "seed", "epoch"), options.device, options.json)
    for name in options.groups:
        train(name, data, configs[name], options, rows, alike)
    table = Rows("curves", COLUMNS, (*alike, "epoch", "measure"), options.device, options.json)
    same = [row for row in rows.rows if alike.items() <= row.items()]
    for row in compared(same):
        table.add({**alike, **row})


def compared(rows: Sequence[Row]) -> Iterator[Row]:
    """Means of both groups at every epoch that two seeds of each have reached."""
    for epoch in sorted({row["epoch"] for row in rows}):
        both = [[r for r in rows if r["epoch"] == epoch and r["group"] == name] for name in ("engine", "reference")]
        if min(map(len, both)) > 1:
            for measure in MEASURES:
                mine, others = ([row[measure] for row in group] for group in both)
                about = {"engine": both[0][0]["engine"], "precision": both[0][0]["precision"]}
                yield {"epoch": epoch, "measure": measure, "seeds": len(mine), **difference(mine, others), **about}


def load(options: Options) -> Data:
    """CIFAR-10; random images where only the code is tried."""
    if options.tiny:
        return images(16, options.device)
    if options.data is None:
        raise SystemExit("--only curves: give the folder of CIFAR-10 with --data")
    return cifar10(options.data).to(options.device)


def check(data: Data, config: Config, options: Options) -> None:
    """Losses of the first steps of captured and plain loop, from the same state."""
    steps = 4 if options.tiny else CHECKED
    # A checkpoint after every step makes the captured trainer look after every step.
    both = [replace(config, engine=engine, checkpoint_steps=1) for engine in ("plain", "captured")]
    plain, captured = (losses(data, own, steps, options) for own in both)
    rows = Rows("curves_check", CHECK_COLUMNS, ("method", "step"), options.device, options.json)
    for step in (n for n in (1, 2, 3, 10, 30, 100) if n <= steps):
        relative = max(abs(a - b) / abs(a) for a, b in zip(plain[:step], captured[:step], strict=True))
        row = {"step": step, "plain": plain[step - 1], "captured": captured[step - 1], "relative": relative}
        rows.add({**row, "method": options.method})


def losses(data: Data, config: Config, steps: int, options: Options) -> list[float]:
    """Training loss of each of the first steps."""
    found, before = [], 0.0
    with numerics(config, options.device):
        group = together(options.method, data, [config], width=options.width)
        (subject,) = group.trainers
        for _ in range(steps):
            subject.begin()
            subject.step()
            found.append((subject.sums["loss"] - before) / config.batch)
            before = subject.sums["loss"]
        group.release()
    return found


def train(name: str, data: Data, config: Config, options: Options, rows: Rows, alike: Row) -> None:
    """All seeds of a group; a row for each at each epoch."""

    def ended(seed: int, record: Row) -> None:
        values = {measure: record[measure] for measure in MEASURES}
        about = {"engine": group.kind, "precision": config.precision, "compile": config.compile}
        rows.add({**alike, "group": name, "seed": seed, "epoch": record["epoch"], **values, **about})

    with numerics(config, options.device):
        members = [replace(config, seed=seed) for seed in range(options.seeds)]
        group = together(options.method, data, members, width=options.width)
        group.epochs(config.epochs, ended)
        group.release()


def difference(mine: Sequence[float], others: Sequence[float]) -> Row:
    """Difference of two means, its standard error ``sqrt(s1^2 / n1 + s2^2 / n2)``, and their quotient z."""
    gap = statistics.fmean(mine) - statistics.fmean(others)
    error = math.sqrt(statistics.variance(mine) / len(mine) + statistics.variance(others) / len(others))
    return {
        "engine_mean": statistics.fmean(mine),
        "reference_mean": statistics.fmean(others),
        "difference": gap,
        "standard_error": error,
        "z": gap / error if error else None,
    }
