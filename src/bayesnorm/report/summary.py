"""What a report says about one run, read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..train.methods import method_of
from ..train.run_folder import RunFolder

BY_WAY = ("metrics", "reliability", "coverage")
"""What an evaluation has for each way of predicting."""


@dataclass(frozen=True)
class Summary:
    """One run as a report shows it.

    Arguments:
        name: what it is called on the page.
        method: ``analytic+projection+bayes``, or "own network" for one that was not made by a recipe.
        data: name of the data set.
        config: settings of the training.
        recipe: how network and data were made; empty for a network of one's own.
        environment: versions, hardware, command.
        history: a record per epoch, see ``Trainer.measure``.
        result: how the run ended; None if it has not.
        evaluation: ``evaluation-test.json``: metrics, reliability, coverage, learned noise, and the baselines of
            ``baselines-test.json``; None if there is none.
        examples: ``examples-test.json``: the most and the least certain images.
        robustness: ``robustness-test.json``: metrics under noise and attack.
        images: digest of images, targets and their splits; None where it is not known.
    """

    name: str
    method: str
    data: str
    config: dict[str, Any]
    recipe: dict[str, Any]
    environment: dict[str, Any]
    history: list[dict[str, Any]]
    result: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    examples: dict[str, Any] | None
    robustness: dict[str, Any] | None
    images: str | None = None

    @property
    def judged(self) -> str:
        """Which samples are meant by test: those for validation, where there are no others."""
        return "test" if (self.evaluation or {}).get("has_test", True) else "validation"


def judged(runs: Sequence[Summary]) -> str:
    """Likewise of several runs."""
    return " or ".join(dict.fromkeys(run.judged for run in runs)) or "test"


def read(path: str | Path, name: str | None = None) -> Summary:
    """The summary of a run folder; documents that are missing, or damaged (with a warning), are None.

    Arguments:
        path: the folder, as ``bayesnorm train --out`` made it.
        name: what to call it; by default as its folder is called.
    """
    folder = RunFolder(path)
    about = folder.about()
    config, recipe = about["config"], about["recipe"] or {}
    return Summary(
        name=folder.path.resolve().name if name is None else name,
        method=method_of(about),
        data=about["data"]["name"],
        config=config,
        recipe=recipe,
        environment=about.get("environment") or {},
        history=folder.history(),
        result=folder.result(),
        evaluation=_with_baselines(folder.read("evaluation-test.json"), folder.read("baselines-test.json")),
        examples=folder.read("examples-test.json"),
        robustness=folder.read("robustness-test.json"),
        images=about["data"].get("digest"),
    )


def _with_baselines(evaluation: dict[str, Any] | None, baselines: dict[str, Any] | None) -> dict[str, Any] | None:
    """The evaluation, with the baselines of the same network as further ways of predicting."""
    if evaluation is None or baselines is None or evaluation.get("network") != baselines.get("network"):
        return evaluation
    return {**evaluation, **{key: {**evaluation[key], **baselines[key]} for key in BY_WAY}}
