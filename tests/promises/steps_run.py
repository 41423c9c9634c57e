"""A script: six steps of every kind of network and optimizer, each in a folder of its own.

``steps_run.py FOLDER STEP``: each run is left after that step, 0 for never; run again, it goes on.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesnorm.data import digits
from bayesnorm.data.base import Data, make_data
from bayesnorm.train import Config, Recipe, fit
from bayesnorm.train.defaults import resolve
from bayesnorm.train.events import Event, Saved

METHODS = [("none", "point"), *itertools.product(("batch", "weight", "analytic"), ("point", "noise", "bayes"))]
OPTIMIZERS = ["sgd", "adam"]
KINDS: dict[str, dict[str, Any]] = {
    **{
        f"{norm}-{scale}-{optimizer}": {"norm": norm, "scale": scale, "optimizer": optimizer}
        for (norm, scale), optimizer in itertools.product(METHODS, OPTIMIZERS)
    },
    "patches": {"norm": "analytic", "first_layer": "patch"},
    "variance-per-layer": {"norm": "weight", "per_layer_variance": True},
    "stochastic-bias": {"norm": "weight", "stochastic_bias": True, "prior": "log-uniform"},
    "large-norm-batch": {"norm": "batch", "norm_batch": 32},
    "clipped": {"norm": "batch", "scale": "point", "project": False, "clip": 1.0, "warmup_steps": 4},
    "bf16": {"precision": "bf16", "kl_warmup": 1.0},
    "residual": {"norm": "batch", "scale": "noise", "model": "resnet18"},
    "dropout-sgd": {"optimizer": "sgd"},
    "dropout-adam": {"optimizer": "adam"},
}


class Left(Exception):  # noqa: N818
    """The run is over for now."""


def _few() -> Data:
    """96 training images."""
    whole = digits()
    return make_data("few", *(part[:96] for part in (whole.train, whole.val, whole.test)), classes=whole.classes)


def _dropout() -> nn.Module:
    """Draws from torch's global generator."""
    torch.manual_seed(1)
    head = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(144, 10))
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), head)


def _train(kind: str, folder: Path, step: int, data: Data) -> None:
    common = {"data": "digits", "width": 0.02, "epochs": 1, "batch": 16, "lr": 0.01, "train_eval": 0}
    recipe, config = resolve({**common, "checkpoint_steps": 1, **KINDS[kind]})
    net = _dropout() if kind.startswith("dropout") else Recipe(**recipe).build(data, 0)
    torch.rand(1 + step)  # what the caller has drawn before does not count

    def leave(event: Event) -> None:
        if isinstance(event, Saved) and event.step == step:
            raise Left

    try:
        fit(net, data, Config.from_dict(config), out=folder / kind, resume=True, callbacks=[leave])
    except Left:
        return
    assert not step


if __name__ == "__main__":
    few = _few()
    for each in KINDS:
        _train(each, Path(sys.argv[1]), int(sys.argv[2]), few)
