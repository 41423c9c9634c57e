"""Time of a training step of each engine, with the settings that bitwise resume needs: every figure twice."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import Any

from options import Options
from rounds import Peak, interleaved, milliseconds, peak, ratio
from rows import Rows
from trainers import WARM_UP, SideBySide, images, together

from bayesnorm.data.base import Data
from bayesnorm.train import Config
from bayesnorm.train.numerics import numerics

SAMPLES = 45_000
BATCH = 32
PROTOCOL = 1200 * 1407
"""Steps of the paper's protocol: 1200 epochs of 45,000 samples in batches of 32."""
COLUMNS = {
    "method": "method",
    "engine": "engine",
    "precision": "precision",
    "models": "models",
    "first_ms": "ms",
    "second_ms": "again",
    "over_none": "/ none",
    "over_batch": "/ batch",
    "minutes": "1200 epochs, min",
    "allocated_mib": "MiB",
    "reserved_mib": "reserved",
}


def run(options: Options) -> None:
    """Rows of all engines, precisions and numbers of models; methods take turns, times are per step of one model."""
    key = ("method", "engine", "precision", "models", "compile")
    rows = Rows("engine", COLUMNS, key, options.device, options.json)
    data = images(10 * BATCH if options.tiny else SAMPLES, options.device)
    for engine, precision, models in itertools.product(options.engines, options.precision, options.models):
        config = config_of(engine, precision, options)
        with numerics(config, options.device):
            for row in measure(data, config, models, options):
                rows.add(row)


def config_of(engine: Any, precision: Any, options: Options, batch: int = BATCH) -> Config:
    """As an engine is used: compiled and channels last, deterministic, nothing chosen by timing."""
    return Config(
        batch=batch,
        engine=engine,
        precision=precision,
        compile=engine != "fused" and not options.eager,
        channels_last=True,
    )


def measure(data: Data, config: Config, models: int, options: Options) -> list[dict[str, Any]]:
    """All methods in the same rounds."""
    groups: dict[str, SideBySide] = {}
    memory: dict[str, Peak] = {}
    for method in options.methods:
        members = [dataclasses.replace(config, seed=seed) for seed in range(models)]
        try:
            with peak(options.device) as memory[method]:
                group = together(method, data, members, width=options.width)
                group.steps(1 if options.tiny else WARM_UP)
        except ValueError as error:  # an engine that is not made for this method says so
            print(f"{method}: left out ({error})", flush=True)
        else:
            groups[method] = group
    works = {method: partial(group.steps, options.steps) for method, group in groups.items()}
    first, second = (interleaved(works, options.rounds, options.device) for _ in range(2))
    both = {method: first[method] + second[method] for method in works}
    kinds = {method: group.kind for method, group in groups.items()}
    for group in groups.values():
        group.release()
    return [
        {
            "method": method,
            "engine": kinds[method],
            "precision": config.precision,
            "models": models,
            "compile": config.compile,
            "batch": config.batch,
            "first_ms": milliseconds(first[method], 4),
            "second_ms": milliseconds(second[method], 4),
            "over_none": ratio(both[method], both.get("none")),
            "over_batch": ratio(both[method], both.get("batch")),
            "minutes": round(milliseconds(both[method], 6) * PROTOCOL / 60_000, 2),
            "allocated_mib": memory[method].allocated,
            "reserved_mib": memory[method].reserved,
            "driver_mib": memory[method].driver,
            "rounds": options.rounds,
            "steps": options.steps,
        }
        for method in works
    ]
