"""Options of ``gpu.py``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from trainers import METHODS, TINY


class Options(argparse.Namespace):
    """What the sections read; ``parse`` fills it."""

    only: list[str]
    device: torch.device
    tiny: bool
    json: Path | None
    rounds: int
    steps: int
    networks: list[str]
    batch: list[int]
    modes: list[str]
    subjects: list[str]
    engines: list[str]
    methods: list[str]
    precision: list[str]
    models: list[int]
    eager: bool
    lock: Path | None
    axes: list[str]
    data: Path | None
    epochs: int
    seeds: int
    lr: float
    reference: str
    groups: list[str]
    method: str
    width: float = 1.0


def parse(description: str, sections: Sequence[str], arguments: Sequence[str] | None = None) -> Options:
    """The command line; ``--tiny`` replaces what would take long."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--tiny", action="store_true", help="narrow networks, few steps: only to see that it works")
    parser.add_argument("--json", type=Path, help="the rows go into this file, section by section")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200, help="of the engine per round; peers take a tenth")
    parser.add_argument("--engines", nargs="+", default=["auto"], help="auto: the fastest that can do it")
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32"])
    parser.add_argument("--eager", action="store_true", help="the engine without torch.compile")
    parser.add_argument("--lock", type=Path, help="calls with the same file build at once and are timed in turn")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--methods", nargs="+", default=list(METHODS))
    engine.add_argument("--models", type=int, nargs="+", default=[1, 8], help="at once")
    peers = parser.add_argument_group("peers")
    peers.add_argument("--networks", nargs="+", default=["All-CNN", "ResNet-18"])
    peers.add_argument("--batch", type=int, nargs="+", default=[32, 256])
    peers.add_argument("--modes", nargs="+", default=["eager", "compiled", "reduce-overhead"])
    peers.add_argument("--subjects", nargs="+", default=[""], help="those whose name contains one of these")
    scale = parser.add_argument_group("scale")
    scale.add_argument("--axes", nargs="+", default=["image", "batch", "width", "models"])
    curves = parser.add_argument_group("curves")
    curves.add_argument("--data", type=Path, help="folder of CIFAR-10")
    curves.add_argument("--epochs", type=int, default=10)
    curves.add_argument("--seeds", type=int, default=4)
    curves.add_argument("--lr", type=float, default=0.003)
    curves.add_argument("--method", default="analytic+projection+bayes")
    curves.add_argument("--groups", nargs="+", default=["engine", "reference"], help="trained by this call")
    curves.add_argument("--reference", choices=["captured", "plain"], default="captured")
    options = parser.parse_args(arguments, namespace=Options())
    return _tiny(options) if options.tiny else options


def _tiny(options: Options) -> Options:
    options.rounds, options.steps, options.width = 2, 2, TINY
    options.batch, options.models, options.modes = [4], [1, 2], ["eager"]
    options.epochs, options.seeds, options.eager = 2, 2, True
    options.precision = options.precision[:1]
    return options
