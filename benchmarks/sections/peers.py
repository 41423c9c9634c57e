"""The same network in several hands: our engine, our plain loop, and each peer eager and compiled, in one run."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from alone import Alone
from comparison import COLUMNS, KEY, Case, Entrant, compare
from options import Options
from rounds import peak
from rows import Rows
from trainers import WARM_UP, SideBySide, images, together

from bayesnorm.train.numerics import numerics
from sections.engine import config_of

METHOD = "analytic+projection+bayes"
EPOCH = 201
"""Batches of random images: a look at the device comes after 200."""


def run(options: Options) -> None:
    """A comparison for each network and batch size."""
    # A peer whose layers are compiled one by one needs one entry for each; with the default of 8 some stay eager.
    with torch._dynamo.config.patch(recompile_limit=64), Alone(options.lock) as alone:
        _run(options, alone)


def _run(options: Options, alone: Alone) -> None:
    rows = Rows("peers", COLUMNS, KEY, options.device, options.json)
    for network, batch in itertools.product(options.networks, options.batch):
        case = Case(
            network,
            batch,
            rounds=options.rounds,
            steps=max(1, options.steps // 10),
            mc_rounds=max(1, options.rounds // 2),
            modes=tuple(options.modes),
            width=options.width,
            subjects=tuple(options.subjects),
            passes=1 if options.tiny else 30,
        )
        ours = engine_entrants(network, batch, options)
        for row in compare(case, options.device, ours, alone):
            rows.add(row)


def engine_entrants(network: str, batch: int, options: Options) -> list[Entrant]:
    """Our engine in each precision. The last engine is the fastest, and the first of its rows is "ours" in ratios."""
    found = []
    data = images(batch * (3 if options.tiny else EPOCH), options.device)
    for engine, precision in itertools.product(reversed(options.engines), options.precision):
        config = config_of(engine, precision, options, batch)
        with numerics(config, options.device), peak(options.device) as memory:
            try:
                group = together(METHOD, data, [config], network, options.width)
                group.steps(1 if options.tiny else WARM_UP)
            except ValueError as error:  # an engine that is not made for this network says so
                print(f"engine {engine}, {network}: left out ({error})", flush=True)
                continue
        step = partial(_steps, group, options)
        found.append(Entrant(f"bayesnorm engine ({group.kind})", precision, step, memory, posterior=True))
    return found


def _steps(group: SideBySide, options: Options) -> float:
    """As it runs in training: peers have torch's own settings, the engine has its."""
    with numerics(group.trainers[0].config, options.device):
        return group.steps(options.steps)
