"""Trainers of the package on random images, alone or side by side as in a fleet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from subjects import NETWORKS
from torch import nn

from bayesnorm.data import Augment, Split, make_data
from bayesnorm.data.base import Data
from bayesnorm.models import cell_net
from bayesnorm.train import Config
from bayesnorm.train.captured import CapturedTrainer
from bayesnorm.train.engine import make_trainer
from bayesnorm.train.fused.dock import Dock
from bayesnorm.train.fused.trainer import FusedTrainer
from bayesnorm.train.lockstep import Turn
from bayesnorm.train.methods import settings_of
from bayesnorm.train.trainer import Trainer
from bayesnorm.train.world import World

METHODS = ("none", "batch", "weight+projection+bayes", "analytic+projection+bayes")
LR = 1e-4
"""Small, so that no network diverges on images that mean nothing."""
WARM_UP = 20
TINY = 1 / 16
"""Width of the networks where only the code is tried."""

BUILDERS: dict[str, Callable[[str | None, str, float], nn.Module]] = {
    **{name: network.normalized for name, network in NETWORKS.items()},
    "cells": lambda norm, scale, width: cell_net(norm, scale, "softplus", width=width, input_stats=([0.0], [1.0])),
}
"""Networks by norm, scale and width."""


def images(count: int, device: torch.device, side: int = 32) -> Data:
    """Random images in ten classes, augmented as CIFAR-10 is."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    split, names = Split(x, y), tuple(str(i) for i in range(10))
    return make_data("random", split, split[:10], split[:10], names, Augment(shift=2, hflip=True)).to(device)


def together(
    method: str, data: Data, configs: Sequence[Config], network: str = "All-CNN", width: float = 1.0
) -> SideBySide:
    """Networks of this method, each initialized by the seed of its configuration, with what trains them."""
    found, dock, trainers = settings_of(method), Dock(), []
    norm = None if found["norm"] == "none" else found["norm"]
    for config in configs:
        torch.manual_seed(config.seed)
        net = BUILDERS[network](norm, found["scale"], width).to(data.device)
        own = dataclasses.replace(config, project=found["project"])
        lr = LR if own.lr == "auto" else own.lr
        trainers.append(make_trainer(net, data, own, lr, World(0, 1, data.device), dock))
    return SideBySide(trainers)


class SideBySide:
    """Trainers that take turns as the members of a fleet do: each begins its steps before the first waits for its own.

    Arguments:
        trainers: on one device.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = list(trainers)
        self.turns = [Turn(trainer.data.device) for trainer in trainers]

    @property
    def kind(self) -> str:
        """The engine that takes the steps."""
        return {Trainer: "plain", CapturedTrainer: "captured", FusedTrainer: "fused"}[type(self.trainers[0])]

    def look(self) -> int:
        """Steps of every trainer up to its next look at the device; returns how many they were, in all."""
        taken = 0
        for trainer, turn in zip(self.trainers, self.turns, strict=True):
            with turn:
                trainer.begin()
        for trainer, turn in zip(self.trainers, self.turns, strict=True):
            before = trainer.batch
            with turn:
                trainer.step()
            taken += trainer.batch - before
        return taken

    def steps(self, count: int) -> float:
        """At least so many steps of each, of whole batches; returns how many they were, in all."""
        taken = 0
        while taken < count * len(self.trainers):
            for trainer in self.trainers:
                if trainer.batch + 1 >= len(trainer.batches):
                    trainer.next_epoch()
            taken += self.look()
        return taken

    def epochs(self, count: int, ended: Callable[[int, dict[str, Any]], None]) -> None:
        """Whole epochs; ``ended`` is called with the number of the trainer and its measurements."""
        while self.trainers[0].epoch < count:
            while self.trainers[0].batch < len(self.trainers[0].batches):
                self.look()
            for number, (trainer, turn) in enumerate(zip(self.trainers, self.turns, strict=True)):
                with turn:
                    record = trainer.measure()
                trainer.next_epoch()
                ended(number, record)

    def release(self) -> None:
        """Give graphs and streams back."""
        for trainer in self.trainers:
            trainer.release()
        self.trainers, self.turns = [], []
