"""The rows of table 1 as data: every method and seed that was trained, beside what the paper printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..train.documents import SAMPLES
from ..train.environment import typed
from ..train.identity import settings_digest
from ..train.methods import TABLE
from .lab import Lab
from .preset import Preset
from .wanted import BATCH, Wanted

Row = dict[str, Any]

SUFFIXES = ("", "+projection", "+projection+noise", "+projection+bayes")
METHODS = (
    *("none", "batch", "batch+projection"),
    *(f"{norm}{suffix}" for norm in ("weight", "analytic") for suffix in SUFFIXES),
)
"""All eleven methods of the paper's table and figures."""
MEASURES = {
    "accuracy": ("single", "accuracy"),
    "nll": ("single", "nll"),
    "nll_mc10": ("mc10", "nll"),
    "nll_mc30": ("mc30", "nll"),
    "nll_moments": ("moments", "nll"),
    "nll_calibrated": ("single", "calibrated_nll"),
    "ece": ("single", "ece"),
    "aurc": ("single", "aurc"),
    "accuracy_mc30": ("mc30", "accuracy"),
    "nll_calibrated_mc30": ("mc30", "calibrated_nll"),
    "ece_mc30": ("mc30", "ece"),
    "aurc_mc30": ("mc30", "aurc"),
}
"""Way of predicting and measure of each list of a row."""
PRINTED = ("accuracy", "nll", "nll_mc10", "nll_mc30")
PAPER: dict[str, tuple[float | None, ...]] = dict(
    zip(
        TABLE,
        (
            (0.907, 1.45, None, None),
            (0.927, 0.34, None, None),
            (0.941, 0.29, None, None),
            (0.935, 0.48, 0.27, 0.24),
            (0.944, 0.38, 0.22, 0.20),
        ),
        strict=True,
    )
)
"""Of the methods that the paper tabulates, those of :data:`PRINTED`."""
ABOUT = {
    "rows": "a row per method; lists have a value per seed, in the order of seeds; null: the method has no such value",
    "accuracy, nll, ece, aurc": "test set, single pass with the mean scales",
    "nll_mc10, nll_mc30": "test set, probabilities averaged over 10 and 30 draws of the scales",
    "nll_moments": "test set, the posterior carried to the outputs without draws",
    "nll_calibrated": "single pass at the temperature that fits the validation set best",
    "..._mc30": "the same measures of the average over 30 draws",
    "ece": "15 bins of equal width",
    "aurc": "area under error against coverage, rejecting by the entropy of the prediction",
    "lr": "found by search with the first seed (or given by the protocol), kept for the others",
    "minutes": "training of each seed, validation and checkpoints included, evaluation on the test set not, the "
    "learning-rate search where it was made in the same go; of several runs on one device at once, each has an equal "
    "share of the time",
    "gpu_minutes": "sum of the minutes over the seeds; null where they were not trained on a GPU",
    "config_digests": "SHA-256 of all settings of network, data and training of each seed",
    "state_digests": "SHA-256 of every tensor of the final state of each seed",
    "commands": "what began the run of each seed",
    "paper": "as printed, one run; null: the paper has no such row",
}
"""What stands in the file, for its readers."""


def run_of(method: str, seed: int = 0) -> Wanted:
    """The run of a row, as the figures want it too; other seeds take over the learning rate of the first."""
    noise = BATCH if method.endswith("+noise") else None
    first = Wanted(method, noise_of=noise)
    return first if seed == first.seed else Wanted(method, seed=seed, lr_of=first, noise_of=noise)


def runs(preset: Preset) -> list[Wanted]:
    """Those that were asked for."""
    return [run_of(method, seed) for method in preset.table_methods for seed in preset.table_seeds]


def document(lab: Lab) -> dict[str, Any]:
    """``rows`` of all methods that are trained with seeds that were asked for, ``about`` them, and what diverged."""
    rows = [row for method in METHODS if (row := _row(lab, method)) is not None]
    lost = {run.name(lab.preset): other for run in runs(lab.preset) if (other := lab.lost(run)) is not None}
    messages = {name: (lab.folder(other).result() or {})["message"] for name, other in lost.items()}
    return {"about": ABOUT, "rows": rows, "diverged": messages}


def finished(lab: Lab, method: str) -> dict[int, Wanted]:
    """The runs of a row with the seeds that were asked for, those that are trained, by seed."""
    return {seed: run for seed in lab.preset.table_seeds if lab.is_done(run := run_of(method, seed))}


def _row(lab: Lab, method: str) -> Row | None:
    """None if no seed is trained."""
    found = finished(lab, method)
    if not found:
        return None
    seeds, done = list(found), list(found.values())
    folders = [lab.folder(run) for run in done]
    abouts, results = [folder.about() for folder in folders], [folder.result() or {} for folder in folders]
    recipe, config = abouts[0]["recipe"], abouts[0]["config"]
    metrics = [lab.test(run)["metrics"] for run in done]
    minutes = [folder.diary.seconds() / 60 for folder in folders]
    printed = PAPER.get(method)
    return {
        "method": method,
        "protocol": lab.preset.name,
        "padding": recipe["padding"],
        "kl_factor": config["kl_factor"],
        "epochs": config["epochs"],
        "seeds": seeds,
        "lr": results[0]["lr"],
        **{name: _values(metrics, *where) for name, where in MEASURES.items()},
        "gpu_minutes": sum(minutes) if all(about["environment"].get("kind") == "cuda" for about in abouts) else None,
        "minutes": minutes,
        "samples": SAMPLES,
        "set": lab.preset.changes,
        "config_digests": [settings_digest(about) for about in abouts],
        "state_digests": [result["digest"] for result in results],
        "device": abouts[0]["environment"].get("device"),
        "commands": [typed(about["environment"].get("command") or []) for about in abouts],
        "paper": None if printed is None else dict(zip(PRINTED, printed, strict=True)),
    }


def _values(metrics: Sequence[dict[str, Any]], way: str, name: str) -> list[float | None] | None:
    """One for each seed; None where the method does not predict so."""
    return [found[way][name] for found in metrics] if all(way in found for found in metrics) else None
