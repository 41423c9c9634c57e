"""Samples per second of the plain training loop, All-CNN at CIFAR-10 size.

    python benchmarks/throughput.py --device cuda --json results/throughput.json

Every configuration takes whole steps of ``train.Trainer`` (order, augmentation, forward, backward, check, update,
projection) on random images; the median of the rounds is reported. Rounds of all configurations are interleaved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import torch

from bayesnorm.data import Augment, Split, make_data
from bayesnorm.data.base import Data
from bayesnorm.models import all_cnn
from bayesnorm.train import Config
from bayesnorm.train.environment import environment
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
    return Trainer(net, data, config, 1e-3, World(0, 1, data.device))


def seconds(subject: Trainer, steps: int) -> float:
    cuda = subject.data.device.type == "cuda"
    start = time.perf_counter()
    for _ in range(steps):
        if subject.batch + 1 >= len(subject.batches):
            subject.next_epoch()
        subject.step()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--methods", nargs="+", default=list(TABLE))
    parser.add_argument("--steps", type=int, default=50, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager-only", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    data = images(20_000, device)
    rows = []
    for batch in arguments.batch:
        for precision in arguments.precision:
            for compiled in [False] if arguments.eager_only else [False, True]:
                config = Config(batch=batch, lr=1e-3, precision=precision, compile=compiled)
                with numerics(config, device):
                    subjects = {method: trainer(method, data, config) for method in arguments.methods}
                    for subject in subjects.values():
                        seconds(subject, WARMUP)
                    times: dict[str, list[float]] = {method: [] for method in subjects}
                    for _ in range(arguments.rounds):
                        for method, subject in subjects.items():
                            times[method].append(seconds(subject, arguments.steps))
                for method, found in times.items():
                    median = statistics.median(found)
                    row = {
                        "method": method,
                        "batch": batch,
                        "precision": precision,
                        "mode": "compiled" if compiled else "eager",
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
