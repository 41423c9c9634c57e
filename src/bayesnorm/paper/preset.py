"""How thoroughly a reproduction is run: seconds on the digits, minutes on CIFAR-10, or the paper's full protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..train.config import OPERATIONAL, Config
from ..train.defaults import resolve
from ..train.methods import TABLE, settings_of
from ..train.recipe import NO_FILES, ONLY, Recipe

Settings = dict[str, Any]

DECIDED = (
    *("data", "directory", "norm", "scale", "project", "seed", "batch", "norm_batch", "sigma_u", "sigma_v"),
    *("image_size", "model"),
)
"""Settings that say which run of which figure it is: the preset and the figures decide them."""
OF_CELLS = tuple(name for name, (_, kind) in ONLY.items() if kind in ("cells", "cell-net"))
"""Settings that the classification runs do not have."""
LONGEST = 80
"""Letters of the settings in the name of a folder; of longer ones a checksum stands there."""


@dataclass(frozen=True)
class Preset:
    """What stands for the paper's experiments.

    Arguments:
        name: of the preset.
        about: in words.
        images: settings of the classification runs.
        cells: settings of the segmentation runs.
        by_norm: settings of the classification runs with a norm, which those on the cells do not take over; without a
            learning rate it is found by search, as in the paper.
        norm_batch: the large normalization batch of figure 2.
        batch_sizes: training batches of figure A1.
        seeds: of figure A2.
        noise_sizes: batch sizes of figure 4.
        noise_batches: batches of each size, there.
        robustness: test images that are disturbed in figure A4; None: all.
        table_methods: rows of table 1, beyond the five that are drawn.
        table_seeds: of its rows.
        side: settings of the runs of side experiments (figures 2 and A1), compared with each other only: they may be
            shorter; empty: those of all runs.
        changes: settings that were asked for instead; they are part of the names of the runs. ``METHOD:NAME`` is one of
            the runs of a method alone.
    """

    name: str
    about: str
    images: Settings
    cells: Settings
    by_norm: dict[str, Settings] = field(default_factory=dict)
    norm_batch: int = 1024
    batch_sizes: tuple[int, ...] = (8, 32, 128, 512)
    seeds: tuple[int, ...] = (0, 1, 2)
    noise_sizes: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    noise_batches: int = 300
    robustness: int | None = None
    table_methods: tuple[str, ...] = TABLE
    table_seeds: tuple[int, ...] = (0,)
    side: Settings = field(default_factory=dict)
    changes: Settings = field(default_factory=dict)

    def settings(self, cells: bool, norm: str, side: bool = False) -> Settings:
        """Settings of a run, or of one of a side experiment, without what its method decides."""
        chosen = self.cells if cells else {**self.images, **self.by_norm.get(norm, {})}
        return {**chosen, **(self.aside if side else {}), **self.of_method("", cells)}

    def of_method(self, method: str, cells: bool) -> Settings:
        """Settings that were asked for of the runs of a method alone, or of all runs ('').

        >>> PRESETS["smoke"].changed({"batch+projection:lr": 0.1, "batch:lr": 0.2}).of_method("batch+projection", False)
        {'lr': 0.1}
        """
        parts = [(*_parts(name), value) for name, value in self.changes.items()]
        return {name: value for of, name, value in parts if of == method and (cells or name not in OF_CELLS)}

    @property
    def aside(self) -> Settings:
        """Settings of side experiments; none where epochs were asked for, which are those of all runs then."""
        return {} if "epochs" in self.changes else self.side

    @property
    def tag(self) -> str:
        """The changes as part of the name of a folder; empty where there are none that change a result.

        >>> PRESETS["smoke"].changed({"padding": "valid", "kl_factor": 2.0}).tag
        'kl_factor=2,padding=valid'
        """
        return _tag(self.changes)

    @property
    def side_tag(self) -> str:
        """Likewise of the runs of side experiments; that of all runs where they have no settings of their own.

        >>> PRESETS["paper"].changed({"clip": 2.0}).side_tag
        'side-clip=2,epochs=40,eval_every=1'
        """
        return f"side-{_tag({**self.aside, **self.changes})}" if self.aside else self.tag

    def changed(self, settings: Mapping[str, Any]) -> Preset:
        """The preset with other settings; ValueError for one that is not free, or has no sense."""
        for name in settings:
            if _parts(name)[1] in DECIDED:
                raise ValueError(f"--set {name}: preset and figures decide it; leave it out")
        made = replace(self, changes=dict(settings))
        for method in dict.fromkeys(["none", *(method for name in settings if (method := _parts(name)[0]))]):
            of = settings_of(method)
            for cells in (False, True):
                chosen = {**made.settings(cells, of["norm"]), **made.of_method(method, cells), **of}
                place = {} if chosen["data"] in NO_FILES else {"directory": "."}
                recipe, config = resolve({**chosen, **place})
                Recipe(**recipe), Config.from_dict(config)
        return made


def _tag(settings: Settings) -> str:
    """Those that change a result, in the order of their names."""
    kept = {name: value for name, value in sorted(settings.items()) if _parts(name)[1] not in OPERATIONAL}
    # Not a colon, which some file systems do not have in names.
    words = ",".join(f"{name.replace(':', '.')}={_word(value)}" for name, value in kept.items())
    return words if len(words) <= LONGEST else "set-" + hashlib.sha256(words.encode()).hexdigest()[:12]


def _parts(name: str) -> tuple[str, str]:
    """The method that a change is for, or '' for all, and the setting.

    >>> _parts("batch+projection:lr"), _parts("lr")
    (('batch+projection', 'lr'), ('', 'lr'))
    """
    method, _, setting = name.rpartition(":")
    return method, setting


def _word(value: Any) -> str:
    """A value in short, the same for equal ones only."""
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


DIGITS: dict[str, Settings] = {"none": {"lr": 0.017}, "batch": {"lr": 0.045}, "weight": {"lr": 0.004}}
DIGITS |= {"analytic": {"lr": 0.013}}
"""Found by a search on the digits."""
SETTLED: Settings = {"padding": "same", "precision": "bf16", "clip": 5.0, "warmup_steps": 2000, "kl_factor": 2.0}
"""On CIFAR-10, where the paper leaves it open: short runs decided (docs/reproduction.md)."""

PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "smoke",
            "scikit-learn's digits, a few epochs: that everything works, in a minute or two",
            images={"data": "digits", "epochs": 4},
            cells={"data": "strokes", "epochs": 4, "lr": 0.003, "width": 0.25},
            by_norm=DIGITS,
            norm_batch=128,
            batch_sizes=(16, 32, 128),
            noise_sizes=(32, 64, 128, 256, 512),
        ),
        Preset(
            "digits",
            "the digits for 50 epochs: the shapes of the curves, in about twenty minutes on two cores",
            images={"data": "digits", "epochs": 50},
            cells={"data": "strokes", "epochs": 30, "lr": 0.003},
            by_norm=DIGITS,
            norm_batch=256,
            batch_sizes=(16, 32, 128),
        ),
        Preset(
            "short",
            "CIFAR-10 for 10 epochs, the cells for 30, learning rates given: minutes for each run on a GPU",
            images={"data": "cifar10", **SETTLED, "epochs": 10, "lr": 0.04},
            cells={"data": "cells", "epochs": 30, "lr": 0.003, "warmup_steps": 0, "eval_every": 1},
            by_norm={"none": {"lr": 0.01}},
            batch_sizes=(32, 128, 512),
            robustness=2000,
        ),
        Preset(
            "paper",
            "the full protocol: CIFAR-10 for 1200 epochs (fig2, figA1: 40), cells for 3000, learning rates by search",
            images={"data": "cifar10", **SETTLED, "lr_anneal": True, "eval_every": 20},
            cells={"data": "cells", "precision": "bf16"},
            by_norm={"none": {"lr_anneal": False}},
            side={"epochs": 40, "eval_every": 1},
        ),
    )
}
