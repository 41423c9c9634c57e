"""How a network is trained: everything but the network and the data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from .kinds import number, positive, require_flags, whole

OPERATIONAL = {"checkpoint_seconds", "checkpoint_steps", "directory", "data.name"}
"""Settings that do not change what is computed; they may differ when a run is resumed."""
ENGINES = ("auto", "plain", "captured", "fused")


@dataclass(frozen=True)
class Config:
    """The paper's recipe for classification, with its free choices.

    Arguments:
        epochs: passes over the training samples.
        batch: samples per step, over all processes.
        lr: learning rate, or ``"auto"``: the one with the lowest training NLL after a few epochs.
        lr_trials: networks that the search trains.
        lr_epochs: epochs for which it trains each.
        lr_low: smallest learning rate of the search.
        lr_high: largest learning rate of the search.
        lr_anneal: the search trains each network with a learning rate that falls in ``lr_epochs`` as far as it will in
            ``epochs``, instead of one that hardly falls. Larger ones win then.
        optimizer: ``"sgd"`` (Nesterov momentum) or ``"adam"``.
        momentum: momentum of SGD.
        variance_step: learning rate of the posterior's variances in units of ``lr``; None: 100 with SGD, 1 with Adam.
        decay_epochs: epochs in which the learning rate falls to a tenth, ``lr * g^epoch``; None: half of ``epochs``
            (the command line takes a third for cells and strokes).
        warmup_steps: steps over which the learning rate rises linearly from 0.
        project: keep weights on the unit sphere.
        clip: largest norm of the gradient; None: any.
        kl_factor: factor on the KL divergence; 1 is Bayes.
        kl_warmup: epochs over which the factor rises linearly from 0.
        norm_batch: samples over which batch norm takes its statistics, if more than the batch.
        sync_bn: batch norm takes its statistics over all processes.
        precision: ``"fp32"``, ``"tf32"`` (CUDA) or ``"bf16"`` (the forward pass; weights and statistics stay fp32).
        compile: compile the network with ``torch.compile``.
        engine: ``"plain"`` loop; ``"captured"``: the same step in a CUDA graph; ``"fused"``: in kernels of its own, for
            networks like All-CNN; ``"auto"``: on CUDA the fastest that can do it.
        channels_last: memory format of the images and the convolutions.
        deterministic: use deterministic kernels, without which a resumed run is not bitwise the same on CUDA.
        seed: decides order, augmentation and, where the network is built by a recipe, its initialization.
        train_eval: training samples on which the loss in evaluation mode is measured; None: as many as there are
            validation samples.
        eval_every: epochs from one measurement in evaluation mode (validation, training samples) to the next; the last
            epoch is always measured.
        checkpoint_seconds: time between checkpoints.
        checkpoint_steps: also after every so many steps.
    """

    epochs: int = 50
    batch: int = 32
    lr: float | Literal["auto"] = "auto"
    lr_trials: int = 10
    lr_epochs: int = 5
    lr_low: float = 1e-4
    lr_high: float = 1.0
    lr_anneal: bool = False
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.9
    variance_step: float | None = None
    decay_epochs: float | None = None
    warmup_steps: int = 0
    project: bool = True
    clip: float | None = None
    kl_factor: float = 1.0
    kl_warmup: float = 0.0
    norm_batch: int | None = None
    sync_bn: bool = False
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    compile: bool = False
    engine: Literal["auto", "plain", "captured", "fused"] = "auto"
    channels_last: bool = True
    deterministic: bool = True
    seed: int = 0
    train_eval: int | None = None
    eval_every: int = 1
    checkpoint_seconds: float = 60.0
    checkpoint_steps: int | None = None

    def __post_init__(self) -> None:
        require_flags(self)
        for name in ("epochs", "batch", "lr_trials", "lr_epochs", "eval_every"):
            _require(self, name, lambda v: whole(v) and v >= 1, "a whole number of at least 1")
        for name in ("warmup_steps", "seed"):
            _require(self, name, lambda v: whole(v) and 0 <= v < 2**63, "a whole number, not negative, below 2^63")
        for name in ("norm_batch", "checkpoint_steps"):
            _require(self, name, lambda v: v is None or (whole(v) and v >= 1), "a whole number of at least 1")
        _require(self, "train_eval", lambda v: v is None or (whole(v) and v >= 0), "a whole number, not negative")
        for name in ("lr_low", "lr_high"):
            _require(self, name, positive, "a positive number")
        for name in ("variance_step", "decay_epochs", "clip"):
            _require(self, name, lambda v: v is None or positive(v), "a positive number")
        for name in ("kl_factor", "kl_warmup", "checkpoint_seconds"):
            _require(self, name, lambda v: number(v) and v >= 0, "a number, not negative")
        _require(self, "lr", lambda v: v == "auto" or positive(v), "'auto' or a positive number")
        _require(self, "momentum", lambda v: number(v) and 0 < v < 1, "a number between 0 and 1")
        _require(self, "optimizer", lambda v: v in ("sgd", "adam"), "'sgd' or 'adam'")
        _require(self, "engine", lambda v: v in ENGINES, "'auto', 'plain', 'captured' or 'fused'")
        _require(self, "precision", lambda v: v in ("fp32", "tf32", "bf16"), "'fp32', 'tf32' or 'bf16'")
        if not self.lr_low < self.lr_high:
            raise ValueError(f"lr_low={self.lr_low}: must be below lr_high={self.lr_high}")

    @property
    def decay(self) -> float:
        """Factor g of the learning rate per epoch."""
        return float(0.1 ** (1 / self._decay_epochs))

    @property
    def trial(self) -> Config:
        """That of a trial of the search.

        >>> whole = Config(epochs=1200, lr_anneal=True)
        >>> round(whole.decay**600, 9), round(whole.trial.decay**2.5, 9)
        (0.1, 0.1)
        """
        part = self.lr_epochs / self.epochs if self.lr_anneal else 1.0
        return dataclasses.replace(self, decay_epochs=self._decay_epochs * part)

    @property
    def _decay_epochs(self) -> float:
        return self.decay_epochs or max(1.0, self.epochs / 2)

    @property
    def variance_factor(self) -> float:
        """Step of the variance parameters relative to that of the weights."""
        return self.variance_step or {"sgd": 100.0, "adam": 1.0}[self.optimizer]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The configuration that ``as_dict`` wrote.

        >>> Config.from_dict(Config(epochs=3).as_dict()) == Config(epochs=3)
        True
        """
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"unknown setting {unknown[0]!r} in a training configuration")
        return cls(**values)


def _require(config: Config, name: str, holds: Any, what: str) -> None:
    value = getattr(config, name)
    if not holds(value):
        raise ValueError(f"{name}={value!r}: must be {what}")
