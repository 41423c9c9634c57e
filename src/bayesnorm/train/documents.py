"""What is found out about a trained run, stored beside it: made once for each state of the network."""

from __future__ import annotations

import errno
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from .._posterior import posterior
from ..data.base import Data
from ..errors import RunError
from ..evaluate.comparison import allows_baselines, of_network
from ..evaluate.evaluation import as_json, evaluate, ways
from ..evaluate.examples import examples
from ..evaluate.robustness import attack_curve, noise_curve
from ._load import Loaded
from .config import Config
from .numerics import numerics
from .run_folder import RunFolder
from .state import digest

Document = dict[str, Any]
Progress = Callable[[int], None]

VERSION = 3
"""Of the documents; older ones are made anew."""
MAPS = 2
"""Of the pictures of segmented images, likewise."""
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""How a folder that may not be written says so: by permission, or a file system mounted for reading."""
SAMPLES = 30
"""Draws of an evaluation, where no number is asked for."""
ROBUSTNESS = 2000
"""Images of which the robustness is measured."""
NOISE = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
ATTACK = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1)


@dataclass(frozen=True)
class Trained:
    """A network that was trained, and where.

    Arguments:
        folder: of the run.
        net: its network.
        data: on the device of the network.
        config: how it was trained.
        step: steps taken.
    """

    folder: RunFolder
    net: nn.Module
    data: Data
    config: Config
    step: int

    @classmethod
    def of(cls, run: Loaded) -> Trained:
        """A run that was read back from its folder."""
        return cls(run.folder, run.net, run.data, run.config, run.step)


def evaluation(
    run: Trained, part: str = "test", samples: int = SAMPLES, progress: Progress = lambda count: None
) -> Document:
    """Metrics, reliability and error-coverage curves by each way of predicting, and the learned noise."""

    def make() -> Document:
        judged = evaluate(run.net, run.data, part, samples, run.config.seed, progress)
        ratios = {name: scale.relative for name, scale in posterior(run.net).items()}
        return {
            "split": part,
            "has_test": run.data.has_test,
            "samples": samples,
            "step": run.step,
            "data": run.data.name,
            "images": len(run.data.part(part)),
            "classes": list(run.data.classes),
            **as_json(judged),
            "sigma_over_s": {name: ratio.mean().item() for name, ratio in ratios.items()},
            "channels": {name: ratio.flatten().tolist() for name, ratio in ratios.items()},
        }

    return stored(run, evaluation_name(part), {"samples": samples}, make, lambda old: old["samples"] < samples)


def evaluation_work(run: Trained, part: str, samples: int) -> int:
    """Images that an evaluation predicts, counted once for every way of predicting."""
    calibrates = part == "train" or (part == "test" and run.data.has_test)
    images = len(run.data.part(part)) + (len(run.data.val) if calibrates else 0)
    return images * len(ways(run.net, run.data, samples))


def baselines(run: Trained, samples: int = SAMPLES) -> Document:
    """Other ways to average over random networks, as far as this one allows them, on the test set.

    Raises:
        RunError: it allows none.
    """
    if not allows_baselines(run.net):
        why = "its network has neither batch norm nor dropout"
        raise RunError(f"{run.folder.path} has no baselines, as {why}: leave --baselines out")

    def make() -> Document:
        judged = of_network(run.net, run.data, run.config.batch, samples, run.config.seed)
        return {"split": "test", "step": run.step, **as_json(judged)}

    return stored(run, "baselines-test.json", {"samples": samples}, make, lambda old: old["samples"] < samples)


def certainty(run: Trained, samples: int = SAMPLES) -> Document:
    """The most and the least certain test images."""
    settings = {"samples": samples, **({"maps": MAPS} if run.data.per_pixel else {})}

    def make() -> Document:
        return examples(run.net, run.data, samples)

    return stored(run, "examples-test.json", settings, make, lambda old: old["samples"] <= samples)


def robustness(run: Trained, limit: int | None = ROBUSTNESS, progress: Progress = lambda n: None) -> Document:
    """Single-pass metrics under Gaussian noise and under the gradient-sign attack, of the first test images.

    Arguments:
        limit: how many of them; None: all.
    """
    count = len(run.data.test) if limit is None else min(limit, len(run.data.test))

    def make() -> Document:
        noise = noise_curve(run.net, run.data, "test", NOISE, progress=progress, limit=limit)
        attack = attack_curve(run.net, run.data, "test", ATTACK, progress=progress, limit=limit)
        return {"noise": disturbed_as_json(noise), "attack": disturbed_as_json(attack)}

    return stored(run, "robustness-test.json", {"count": count}, make)


def disturbed_as_json(curve: Any) -> list[dict[str, float | None]]:
    """A robustness curve for a file."""
    return [
        {
            "strength": strength,
            "accuracy": found.accuracy,
            "nll": found.nll if math.isfinite(found.nll) else None,
            "ece": found.ece,
        }
        for strength, found in curve
    ]


def evaluation_name(part: str) -> str:
    """File of an evaluation."""
    return f"evaluation-{part}.json"


def stored_evaluation(folder: RunFolder, part: str) -> Document:
    """What was measured before."""
    stored = folder.read(evaluation_name(part))
    if stored is None or stored.get("version") != VERSION:
        why = "was not evaluated" if stored is None else "was evaluated by another version of bayesnorm"
        raise RunError(f"{folder.path} {why}: `bayesnorm eval {folder.path} --split {part}` does it")
    return stored


def final_evaluation(folder: RunFolder, result: Document, part: str = "test") -> Document | None:
    """Evaluation of a run that has ended so; None if there is none of that step and this version."""
    try:
        found = stored_evaluation(folder, part)
    except RunError:
        return None
    return found if found["step"] == result["steps"] else None


def known_evaluation(run: Trained) -> Document | None:
    """The stored evaluation of this very network on the test set, whatever its draws; None if there is none."""
    return _found(run, evaluation_name("test"), {"version": VERSION, "network": digest(run.net.state_dict())})


def recorded(folder: RunFolder, name: str, settings: Document) -> Document:
    """The document of that name in the record of a run (``train.record``), which has no network to ask again."""
    found = folder.read(name)
    remedy = "measure it on the run itself and record that again"
    if found is None:
        raise RunError(f"{folder.path} is a record without {name}: {remedy}")
    for field, value in {"version": VERSION, **settings}.items():
        if found.get(field) != value:
            raise RunError(
                f"{folder.path} is a record, its {name} has {field}={found.get(field)!r} instead of {value!r}: {remedy}"
            )
    return found


def stored(
    run: Trained,
    name: str,
    settings: Document,
    make: Callable[[], Document],
    replaces: Callable[[Document], bool] = lambda old: True,
) -> Document:
    """The document of that name if it was made of this very network with these settings, else made and stored.

    Arguments:
        replaces: whether it may take the place of one that was made of the same network with other settings.
    """
    network = {"version": VERSION, "network": digest(run.net.state_dict())}
    key = {**network, **settings}
    found = _found(run, name, key)
    if found is not None:
        return found
    with numerics(run.config, run.data.device):
        document = {**key, **make()}
    other = _found(run, name, network)
    if other is not None and not replaces(other):
        return document
    try:
        run.folder.write(name, document)
    except RunError as error:
        if getattr(error.__cause__, "errno", None) not in READ_ONLY:
            raise
        warnings.warn(f"{run.folder.path} may not be written: {name} is not stored", stacklevel=3)
    return document


def _found(run: Trained, name: str, key: Document) -> Document | None:
    """The document of that name if it agrees with a key."""
    found = run.folder.read(name)
    return found if found is not None and all(found.get(field) == value for field, value in key.items()) else None
