"""Cost against scale: image size, batch, width, and the number of models at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from options import Options
from rounds import interleaved, milliseconds, peak
from rows import Rows
from trainers import TINY, WARM_UP, images, together

from bayesnorm.train.numerics import numerics
from sections.engine import config_of

METHOD = "analytic+projection+bayes"
EPOCH = 201
"""Batches of random images: a look at the device comes after 200."""
COLUMNS = {
    "axis": "axis",
    "image": "image",
    "batch": "batch",
    "width": "width",
    "models": "models",
    "engine": "engine",
    "ms": "ms",
    "images_per_second": "images/s",
    "allocated_mib": "MiB",
    "reserved_mib": "reserved",
}


@dataclass(frozen=True)
class Point:
    """Where a measurement is made."""

    image: int = 32
    batch: int = 32
    width: float = 1.0
    models: int = 1


AXES: dict[str, tuple[Any, ...]] = {
    "image": (32, 48, 64, 96, 128),
    "batch": (8, 32, 128, 256, 512, 1024),
    "width": (1.0, 2.0, 4.0),
    "models": (1, 2, 4, 8, 16, 32),
}


def points(options: Options) -> Iterator[tuple[str, Point]]:
    """Along each axis from the same origin."""
    tiny = {"image": (32, 36), "batch": (2, 4), "width": (TINY, 2 * TINY), "models": (1, 2)}
    origin = Point(32, 2, TINY) if options.tiny else Point()
    for axis in options.axes:
        for value in (tiny if options.tiny else AXES)[axis]:
            yield axis, replace(origin, **{axis: value})


def run(options: Options) -> None:
    """A row for each point; ms are per step of one model, images per second those of all."""
    rows = Rows("scale", COLUMNS, ("axis", "image", "batch", "width", "models"), options.device, options.json)
    known: dict[Point, dict[str, Any]] = {}
    for axis, point in points(options):
        if point not in known:
            try:
                known[point] = measure(point, options)
            except (RuntimeError, ValueError) as error:  # too large for the device, or for this engine
                known[point] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        rows.add({"axis": axis, **dataclasses.asdict(point), **known[point]})


def measure(point: Point, options: Options) -> dict[str, Any]:
    """One point."""
    config = config_of(options.engines[-1], options.precision[0], options, point.batch)
    data = images(point.batch * (3 if options.tiny else EPOCH), options.device, point.image)
    with numerics(config, options.device):
        with peak(options.device) as memory:
            members = [replace(config, seed=seed) for seed in range(point.models)]
            group = together(METHOD, data, members, width=point.width)
            group.steps(1 if options.tiny else WARM_UP)
        times = interleaved({"": partial(group.steps, options.steps)}, options.rounds, options.device)[""]
        kind = group.kind
        group.release()
    ms = milliseconds(times, 4)
    return {
        "engine": kind,
        "precision": config.precision,
        "ms": ms,
        "images_per_second": round(1e3 * point.batch / ms),
        "allocated_mib": memory.allocated,
        "reserved_mib": memory.reserved,
        "driver_mib": memory.driver,
        "rounds": options.rounds,
        "steps": options.steps,
    }
