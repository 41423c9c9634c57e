"""Runs on the same data taken together, as a deep ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from .._posterior import posterior
from ..errors import RunError
from ..evaluate.comparison import of_ensemble
from ..evaluate.evaluation import as_json, name_of
from .documents import Document, Trained
from .environment import environment, portable
from .identity import settings_digest
from .methods import method_of
from .numerics import numerics
from .state import digest


def ensemble(runs: Sequence[Trained], samples: int = 30) -> Document:
    """The mean of the probabilities of several networks on the test set: of single passes, and of draws of all.

    Arguments:
        runs: two or more, on one device; the data of the first is predicted.
        samples: draws of the scales of each network that has a posterior; 0: single passes alone.

    Raises:
        RunError: there is one run only, two are the same network, or what they see differs: data, splits, inputs.
    """
    members = [_member(run) for run in runs]
    if len(runs) < 2:
        raise RunError("an ensemble of one network is that network: name two runs or more")
    for one, other in combinations(range(len(runs)), 2):
        if members[one]["network"] == members[other]["network"]:
            raise RunError(f"{runs[one].folder.path} and {runs[other].folder.path} are the same network: name it once")
    first = runs[0]
    for run in runs[1:]:
        what = _differ(first, run)
        if what is not None:
            raise RunError(
                f"{first.folder.path} and {run.folder.path} {what}: an ensemble predicts the same images, name runs "
                "that see the same"
            )
    nets = [run.net for run in runs]
    ways = [0] if samples == 0 or not any(posterior(net) for net in nets) else [0, samples]
    with numerics(first.config, first.data.device):
        judged = {name_of(draws): of_ensemble(nets, first.data, draws, first.config.seed)["average"] for draws in ways}
    return {
        "split": "test",
        "samples": samples,
        "data": first.data.name,
        "images": len(first.data.part("test")),
        "has_test": first.data.has_test,
        "members": members,
        "environment": portable(environment(first.data.device, 1)),
        **as_json(judged),
    }


def _differ(one: Trained, other: Trained) -> str | None:
    """In what two runs see differently, in words."""
    if one.folder.about()["data"]["digest"] != other.folder.about()["data"]["digest"]:
        return "were trained on other data or other splits"
    if one.data.classes != other.data.classes:
        return "have other classes"
    same = torch.equal(one.data.mean, other.data.mean) and torch.equal(one.data.std, other.data.std)
    return None if same else "standardize their inputs differently"


def _member(run: Trained) -> Document:
    about = run.folder.about()
    return {
        "run": run.folder.path.name,
        "method": method_of(about),
        "seed": run.config.seed,
        "step": run.step,
        "config_digest": settings_digest(about),
        "network": digest(run.net.state_dict()),
    }
