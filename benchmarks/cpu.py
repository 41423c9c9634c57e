"""Training step, memory and Monte Carlo prediction on this CPU, ours and others': `make bench`.

    pip install --no-deps -r benchmarks/peers.txt
    python benchmarks/cpu.py --json results/cpu.json
    python benchmarks/cpu.py --quick

Medians of interleaved rounds, and medians of the ratios within a round to torch's batch norm and to ours (analytic +
Bayes). Memory is the most that tensors held at one time in a step, parameters and momentum included. A prediction in a
loop of 30 equal passes is timed by a few of them where the table would take too long (``mc_passes`` in the file).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from comparison import COLUMNS, KEY, Case, compare
from rows import Rows

CASES = (
    Case("All-CNN", 32, rounds=13, mc_rounds=3),
    Case("All-CNN", 256, rounds=3, passes=3),
    Case("ResNet-18", 32, rounds=5, passes=3),
    Case("ResNet-18", 256, rounds=2, passes=1),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="batch 32 alone, three rounds")
    parser.add_argument("--tiny", action="store_true", help="narrow networks, two rounds: only to see that it works")
    parser.add_argument("--rounds", type=int, help="of training steps; by network and batch if left out")
    parser.add_argument("--networks", nargs="+", default=["All-CNN", "ResNet-18"])
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--subjects", nargs="+", default=[""], help="those whose name contains one of these")
    parser.add_argument("--compile", action="store_true", help="also every network compiled")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    device = torch.device("cpu")
    rows = Rows("cpu", COLUMNS, KEY, device, options.json)
    for case in CASES:
        if case.network not in options.networks or case.batch not in options.batch:
            continue
        case = replace(case, modes=("eager", "compiled") if options.compile else ("eager",))
        case = replace(case, subjects=tuple(options.subjects), rounds=options.rounds or case.rounds)
        if options.quick:
            case = replace(case, rounds=3, mc_rounds=1, passes=3)
        if options.tiny:
            case = replace(case, rounds=2, mc_rounds=1, passes=1, width=1 / 16)
        if case.batch == 32 or not (options.quick or options.tiny):
            for row in compare(case, device):
                rows.add(row)


if __name__ == "__main__":
    main()
