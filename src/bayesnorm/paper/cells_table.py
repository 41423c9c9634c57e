"""The table of the cell segmentation, from the folders of finished runs: a row per method, a number per split."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..train.documents import stored_evaluation
from ..train.environment import typed
from ..train.identity import effective, settings_digest
from ..train.methods import method_of
from ..train.run_folder import RunFolder

Row = dict[str, Any]

BEST = "analytic+projection+bayes"
"""What the paper finds to be the best: the others are compared with it."""
COLUMNS = {
    "nll": ("single", "nll"),
    "nll_mc10": ("mc10", "nll"),
    "nll_mc30": ("mc30", "nll"),
    "accuracy": ("single", "accuracy"),
    "accuracy_mc30": ("mc30", "accuracy"),
    "iou": ("single", "iou"),
    "iou_mc30": ("mc30", "iou"),
    "dice": ("single", "dice"),
    "seg": ("single", "seg"),
    "seg_mc30": ("mc30", "seg"),
    "ece": ("single", "ece"),
    "ece_mc30": ("mc30", "ece"),
    "aurc": ("single", "aurc"),
}
"""Numbers of a run: way of predicting and measure in its evaluation; null where it was not made."""
SHOWN = ("model", "width", "activation", "masks", "reduce", "epochs", "batch", "precision")
"""Settings that a row names itself, besides among all."""
OWN = ("seed", "split_seed", "cell_split", "lr")
"""Settings in which runs of one row may differ, or that it has under another name."""
UNSEEN = ("lr_trials", "lr_epochs", "lr_low", "lr_high", "lr_anneal", "eval_every", "train_eval")
"""Settings of the search for the learning rate, of which a row has what each run got, and of looks on the way."""
METHOD = ("norm", "scale", "project")
"""Settings in which runs that are compared may differ."""
POSTERIOR = (
    *("sigma_init", "prior", "per_layer_variance", "stochastic_bias"),
    *("variance_step", "kl_factor", "kl_warmup"),
)
"""Settings without an effect where no posterior is learned."""


def cells_table(paths: Sequence[Path]) -> dict[str, Any]:
    """``{"rows": [...], "comparisons": [...], "diverged": [...]}`` of evaluated runs on the cells.

    A row has the method, what else its runs have in common (``settings``: all but seeds, folder, the learning rate and
    how it was found; ``apart``: those in which it differs from other rows of the method), and a list with a number per
    run for every measure; ``splits`` are the seeds of random splits, or ``"01-02"``, ``seeds`` those of training. All
    figures are of the validation frames, as there are no others. A comparison is ``difference``, the mean over runs of
    the same split and seed of the NLL of ``method`` minus that of ``than`` (another method that was trained alike, or
    the same with another posterior), with the two-sided p value of the paired t test: of single passes, and of what
    each predicts best with (30 draws, if it has any). Where only seeds differ, p tells nothing about other frames.
    """
    found: dict[str, Row] = {}
    diverged = []
    for path in paths:
        folder = RunFolder(path)
        about = folder.about()
        if (about["recipe"] or {}).get("data") != "cells":
            raise RunError(f"{path}: not a run on the cells; leave it out")
        result = folder.result() or {}
        if result.get("state") == "diverged":
            diverged.append({**_shared(about), "split": _split(about), "message": result["message"]})
            continue
        if result.get("state") != "finished":
            raise RunError(f"{path}: not finished; `bayesnorm train --out {path} --resume` goes on")
        _enter(found, about, result, stored_evaluation(folder, "test")["metrics"], path)
    rows = [_sorted(row) for row in found.values()]
    for row in rows:
        row["apart"] = _apart(row, rows)
    return {"rows": rows, "comparisons": comparisons(rows), "diverged": diverged}


def _shared(about: Mapping[str, Any]) -> Row:
    """What the runs of a row have in common."""
    settings = _settings(about)
    return {
        "method": method_of(about),
        "split_kind": about["recipe"]["cell_split"],
        **{name: settings[name] for name in SHOWN},
        "settings": settings,
    }


def _settings(about: Mapping[str, Any]) -> dict[str, Any]:
    """What has an effect on the runs of a row."""
    parts = effective(about)
    settings = {**parts["recipe"], **parts["config"]}
    idle = [*OWN, *UNSEEN]
    idle += [] if settings["scale"] == "bayes" else POSTERIOR
    idle += [] if settings["scale"] == "noise" else ("sigma_u", "sigma_v")
    idle += [] if settings["norm"] == "analytic" else ("first_layer",)
    return {name: value for name, value in sorted(settings.items()) if name not in idle}


def _apart(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """Settings in which a row differs from others of its method."""
    others = [other for other in rows if all(other[name] == row[name] for name in ("method", "split_kind"))]
    return {
        name: value
        for name, value in row["settings"].items()
        if any(other["settings"].get(name) != value for other in others)
    }


def _split(about: Mapping[str, Any]) -> int | str:
    recipe = about["recipe"]
    return int(recipe["split_seed"]) if recipe["cell_split"] == "random" else str(recipe["cell_split"])


def _enter(
    found: dict[str, Row],
    about: Mapping[str, Any],
    result: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    path: Path,
) -> None:
    """Add a run to its row."""
    shared, split = _shared(about), _split(about)
    empty: Row = {
        name: []
        for name in ("splits", "seeds", "lr", *COLUMNS, "minutes", "config_digests", "state_digests", "commands")
    }
    # As text in which 1 and 1.0, of two files, are the same.
    row = found.setdefault(json.dumps(json.loads(json.dumps(shared), parse_int=float)), {**shared, **empty})
    seed = about["config"]["seed"]
    if (split, seed) in _runs(row):
        raise RunError(f"{path}: a second run of {shared['method']} on split {split}, seed {seed}; name one of them")
    new = {name: metrics.get(way, {}).get(measure) for name, (way, measure) in COLUMNS.items()}
    new |= {"splits": split, "seeds": seed, "lr": result["lr"]}
    new |= {"config_digests": settings_digest(dict(about)), "state_digests": result["digest"]}
    new["minutes"] = RunFolder(path).diary.seconds() / 60
    new["commands"] = typed(about["environment"].get("command") or [])
    for name, value in new.items():
        row[name].append(value)


def _runs(row: Row) -> list[tuple[int | str, int]]:
    """Split and seed of each."""
    return list(zip(row["splits"], row["seeds"], strict=True))


def _sorted(row: Row) -> Row:
    """Its runs in order."""
    runs = _runs(row)
    order = sorted(range(len(runs)), key=runs.__getitem__)
    return {name: [v[index] for index in order] if isinstance(v, list) else v for name, v in row.items()}


def comparisons(rows: Sequence[Row]) -> list[Row]:
    """The best method of the paper against each other one that was trained alike, and against itself."""
    ours = [row for row in rows if row["method"] == BEST]
    pairs = [(mine, other) for mine in ours for other in rows if other["method"] != BEST]
    pairs += combinations(ours, 2)
    alike = [pair for pair in pairs if _is_alike(*pair)]
    found = [_compared(*pair, kind) for pair in alike for kind in ("single", "best")]
    return [row for row in found if row["splits"]]


def _is_alike(mine: Row, other: Row) -> bool:
    """Whether two rows were split and trained with the same settings, as far as both have them.

    Of one method they may differ in what is about the posterior.
    """
    ours, theirs = mine["settings"], other["settings"]
    free = METHOD if mine["method"] != other["method"] else POSTERIOR
    common = ours.keys() & theirs.keys() - {*free}
    return mine["split_kind"] == other["split_kind"] and all(ours[name] == theirs[name] for name in common)


def _compared(mine: Row, other: Row, kind: str) -> Row:
    ours, theirs = (_losses(row, kind) for row in (mine, other))
    runs = [run for run in ours if run in theirs]
    differences = [ours[run] - theirs[run] for run in runs]
    return {
        "method": mine["method"],
        "apart": mine["apart"],
        "than": other["method"],
        "than_apart": other["apart"],
        "split_kind": mine["split_kind"],
        "epochs": mine["epochs"],
        "by": kind,
        "splits": [split for split, _ in runs],
        "seeds": [seed for _, seed in runs],
        "difference": statistics.fmean(differences) if differences else None,
        "p": paired_p(differences),
    }


def _losses(row: Row, kind: str) -> dict[tuple[int | str, int], float]:
    """NLL by split and seed; that of the draws where there are any and they are asked for."""
    drawn = kind == "best" and all(value is not None for value in row["nll_mc30"])
    values = zip(_runs(row), row["nll_mc30" if drawn else "nll"], strict=True)
    return {run: value for run, value in values if value is not None}


def paired_p(differences: Sequence[float]) -> float | None:
    """Two-sided p value of the paired t test; None for fewer than two differences, or none that differ.

    >>> round(paired_p([-0.1, -0.12, -0.08]), 4)
    0.0131
    """
    if len(differences) < 2 or statistics.pstdev(differences) == 0:
        return None
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0.0).pvalue)
