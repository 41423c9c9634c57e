"""Everything about speed on a GPU, one table for each part.

    python benchmarks/gpu.py --json results/gpu.json                                  # all, about an hour
    python benchmarks/gpu.py --only engine --precision bf16 --models 1 --json ...     # a part of one part
    python benchmarks/gpu.py --only curves --data data --json results/gpu.json
    python benchmarks/gpu.py --device cpu --tiny                                      # that it works

engine   time of a training step of each method, one model and a fleet of 8, with the settings of bitwise resume
peers    the same network by other libraries: step eager and compiled, memory, 30 draws
scale    cost against image size, batch, width and number of models
curves   engine and reference over some epochs of CIFAR-10: do they differ by more than their seeds?
cells    a training step of the cell network, with our kernels of large filters and with torch's; each filter alone

Medians of interleaved rounds; ratios are taken within a round. Rows are printed and written as they come, and rows of
earlier calls stay in the file, so that each part can be measured in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

from options import parse
from sections import cells, curves, engine, peers, scale

SECTIONS = {"engine": engine.run, "peers": peers.run, "scale": scale.run, "curves": curves.run, "cells": cells.run}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(__doc__ or "", list(SECTIONS), arguments)
    for name in options.only:
        print(f"\n{name}", flush=True)
        SECTIONS[name](options)


if __name__ == "__main__":
    main()
