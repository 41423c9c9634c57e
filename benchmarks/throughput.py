"""Time of a training step, All-CNN at CIFAR-10 size: plain loop or captured engine, one model or several at once.

    python benchmarks/throughput.py --device cuda --engine plain --json results/throughput.json
    python benchmarks/throughput.py --device cuda --engine captured --precision bf16 --channels-last --models 1 8

Every configuration takes whole steps (order, augmentation, forward, backward, check, update, projection) on random
images; the median of the rounds is reported, per step of one model. Rounds of all methods are interleaved. Several
models have a stream each, as in a fleet.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import time
from pathlib import Path

import torch

from bayesnorm.data import Augment, Split, make_data
from bayesnorm.data.base import Data
from bayesnorm.models import all_cnn
from bayesnorm.train import Config
from bayesnorm.train.engine import make_trainer
from bayesnorm.train.environment import environment
from bayesnorm.train.fleet import _Turn
from bayesnorm.train.methods import TABLE, settings_of
from bayesnorm.train.numerics import numerics
from bayesnorm.train.trainer import Trainer
from bayesnorm.train.world import World

WARMUP = 20


def images(count: int, device: torch.device) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    split = Split(x, y)
    names = tuple(str(i) for i in range(10))
    return make_data("random", split, split[:10], split[:10], names, Augment(shift=2, hflip=True)).to(device)


def trainer(method: str, data: Data, config: Config) -> Trainer:
    found = settings_of(method)
    torch.manual_seed(0)
    net = all_cnn(None if found["norm"] == "none" else found["norm"], found["scale"]).to(data.device)
    config = dataclasses.replace(config, project=found["project"])
    return make_trainer(net, data, config, 1e-3, World(0, 1, data.device))


def seconds(subjects: list[Trainer], steps: int) -> float:
    """Per step of one model, over at least so many steps of each."""
    device = subjects[0].data.device
    turns = [_Turn(device) for _ in subjects]
    start, taken = time.perf_counter(), 0
    while taken < steps * len(subjects):
        for subject, turn in zip(subjects, turns, strict=True):
            if subject.batch + 1 >= len(subject.batches):
                subject.next_epoch()
            with turn:
                subject.begin()
        for subject, turn in zip(subjects, turns, strict=True):
            before = subject.batch
            with turn:
                subject.step()
            taken += subject.batch - before
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--engine", choices=["plain", "captured"], default="plain")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--models", type=int, nargs="+", default=[1], help="at once")
    parser.add_argument("--methods", nargs="+", default=list(TABLE))
    parser.add_argument("--steps", type=int, default=50, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager-only", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    data = images(20_000, device)
    rows = []
    modes = [False] if arguments.eager_only else [False, True]
    for batch, precision, compiled, models in itertools.product(
        arguments.batch, arguments.precision, modes, arguments.models
    ):
        config = Config(
            batch=batch,
            lr=1e-3,
            precision=precision,
            compile=compiled,
            engine=arguments.engine,
            channels_last=arguments.channels_last,
        )
        with numerics(config, device):
            subjects = {method: [trainer(method, data, config) for _ in range(models)] for method in arguments.methods}
            for group in subjects.values():
                seconds(group, WARMUP)
            times: dict[str, list[float]] = {method: [] for method in subjects}
            for _ in range(arguments.rounds):
                for method, group in subjects.items():
                    times[method].append(seconds(group, arguments.steps))
        for method, found in times.items():
            median = statistics.median(found)
            row = {
                "method": method,
                "batch": batch,
                "precision": precision,
                "engine": arguments.engine,
                "mode": "compiled" if compiled else "eager",
                "models": models,
                "ms_per_step": round(1000 * median, 3),
                "samples_per_second": round(batch / median),
            }
            rows.append(row)
            print(row, flush=True)
    if arguments.json:
        result = {
            "environment": {**environment(device, 1), "command": None},
            "steps": arguments.steps,
            "rounds": arguments.rounds,
        }
        arguments.json.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
