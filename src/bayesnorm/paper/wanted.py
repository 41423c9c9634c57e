"""A run that a figure needs, in the words of the paper: its other settings are those of the preset."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..train.config import Config
from ..train.methods import settings_of
from .preset import Preset, Settings


@dataclass(frozen=True)
class Wanted:
    """A method, and what is special about this run of it. Figures that want the same run share it.

    Arguments:
        method: as in ``train.methods``.
        seed: of order, augmentation and initialization; the split stays the same.
        batch: training batch, if another than the protocol's.
        norm_batch: normalization batch, if another than the training batch.
        cells: trained on the cells.
        side: of a side experiment, with the preset's settings of those (``Preset.side``); a preset that has none gives
            the same run as without.
        lr_of: the run whose learning rate it takes over.
        noise_of: the batch-normalized run whose measured noise it injects.
    """

    method: str
    seed: int = 0
    batch: int | None = None
    norm_batch: int | None = None
    cells: bool = False
    side: bool = False
    lr_of: Wanted | None = None
    noise_of: Wanted | None = None

    @property
    def needs(self) -> list[Wanted]:
        """Runs that have to be finished before."""
        return [other for other in (self.lr_of, self.noise_of) if other is not None]

    @property
    def whole(self) -> list[Wanted]:
        """The run and all that it needs."""
        return [self, *(run for other in self.needs for run in other.whole)]

    def name(self, preset: Preset) -> str:
        """Of its folder.

        >>> from bayesnorm.paper.preset import PRESETS
        >>> Wanted("batch", seed=1, norm_batch=128).name(PRESETS["smoke"])
        'digits-batch-norm128-seed1'
        """
        special = [f"batch{self.batch}"] if self.batch else []
        special += [f"norm{self.norm_batch}"] if self.norm_batch else []
        tag = preset.side_tag if self.side else preset.tag
        special += [tag] if tag else []
        data = preset.settings(self.cells, "none")["data"]
        return "-".join([data, self.method, *special, f"seed{self.seed}"])

    def settings(self, preset: Preset) -> Settings:
        """Settings of the run that do not depend on other runs."""
        method, asked = settings_of(self.method), preset.of_method(self.method, self.cells)
        found = {**preset.settings(self.cells, method["norm"], self.side), **asked, **method, "seed": self.seed}
        if self.batch is not None:
            found["batch"] = self.batch
            if "warmup_steps" in found:  # over as many samples as with the protocol's batch
                found["warmup_steps"] = round(found["warmup_steps"] * Config.batch / self.batch)
        if self.norm_batch is not None:
            found["norm_batch"] = self.norm_batch
        return found


BATCH = Wanted("batch")
"""Plain batch normalization, which many figures are about."""


def aside(run: Wanted, preset: Preset) -> Wanted:
    """The run as part of a side experiment; where the preset has no settings of those, the run itself.

    >>> from bayesnorm.paper.preset import PRESETS
    >>> aside(BATCH, PRESETS["paper"]).name(PRESETS["paper"])
    'cifar10-batch-side-epochs=40,eval_every=1-seed0'
    >>> aside(BATCH, PRESETS["smoke"]) == BATCH
    True
    """
    return replace(run, side=True) if preset.aside else run
