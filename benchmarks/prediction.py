"""Prediction in one pass against Monte Carlo, on trained runs.

    python benchmarks/prediction.py runs/demo/*+bayes --json results/prediction.json

For each run: NLL of the test set with the mean scales, by moments, and with 10, 30 and 1000 draws (10 and 30: root mean
square of the difference to 1000 over several keys), and the time of each in units of a single pass, medians of
interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import bayesnorm
from bayesnorm.evaluate import fit_inflation
from bayesnorm.train import load
from bayesnorm.train.environment import environment

KEYS = 20


def nll(log_probs: Tensor, targets: Tensor) -> float:
    return float(F.nll_loss(log_probs.double(), targets))


def times(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            found[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in found.items()}


def measure(
    path: str, limit: int | None, rounds: int, many: int, device: str, directory: str | None
) -> dict[str, object]:
    run = load(path, directory, device)
    net, data = run.net, run.data
    x, y = data.standardized(data.test.images[:limit]), data.test.targets[:limit]

    def drawn(samples: int, key: int | None = None) -> float:
        generator = None if key is None else torch.Generator(device).manual_seed(key)
        return nll(bayesnorm.predict(net, x, samples, generator=generator).log_probs, y)

    reference = drawn(many)
    spread = {n: statistics.fmean((drawn(n, key) - reference) ** 2 for key in range(KEYS)) ** 0.5 for n in (10, 30)}
    moments = nll(bayesnorm.predict(net, x, method="moments").log_probs, y)
    val = data.standardized(data.val.images[:200])
    inflation = fit_inflation(net, val)
    fitted = nll(bayesnorm.predict(net, x, method="moments", inflation=inflation).log_probs, y)
    ways: dict[str, Callable[[], object]] = {
        "single": lambda: bayesnorm.predict(net, x, 0),
        "moments": lambda: bayesnorm.predict(net, x, method="moments"),
        "mc10": lambda: bayesnorm.predict(net, x, 10),
    }
    took = times(ways, rounds)
    return {
        "run": Path(path).name,
        "data": data.name,
        "images": len(x),
        "epochs": len(run.history),
        "accuracy": round(float((bayesnorm.predict(net, x, 0).probs.argmax(1) == y).double().mean()), 4),
        "nll_single": round(drawn(0), 5),
        f"nll_mc{many}": round(reference, 5),
        "nll_moments": round(moments, 5),
        "error_moments": round(abs(moments - reference), 5),
        "inflation_fitted": round(inflation, 3),
        "error_moments_fitted": round(abs(fitted - reference), 5),
        "error_mc10": round(spread[10], 5),
        "error_mc30": round(spread[30], 5),
        "time_moments": round(took["moments"] / took["single"], 2),
        "time_mc10": round(took["mc10"] / took["single"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--images", type=int, help="of the test set; all by default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--many", type=int, default=1000, help="draws of the reference")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dir", help="where the data is, if it was moved")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for path in arguments.runs:
        rows.append(measure(path, arguments.images, arguments.rounds, arguments.many, arguments.device, arguments.dir))
        print(rows[-1], flush=True)
    if arguments.json:
        about = {**environment(torch.device(arguments.device), 1), "command": None}
        arguments.json.write_text(json.dumps({"environment": about, "keys": KEYS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
