"""A finished run as a pretrained network: two files, which ``bayesnorm.models.load`` reads.

Weights of convolutions and linear layers are stored in half precision, all else (scales, posterior, statistics) in
single. A network has hundreds of times more weights than anything else, and their rounding errors average out in a
response, while that of a scale moves the whole channel: the 166 scales of the digits' network, halved, change its
predictions more than its 21,660 weights do (``docs/pretrained.md``).
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

from .._files import sealed, sha256
from .._posterior import posterior
from .._predict import predict
from .._project import project_
from ..data.base import Data
from ..data.foreign import range_of
from ..errors import RunError
from ..evaluate.selective import error_coverage
from ..models.pretrained import FORMAT, Pretrained, assemble
from ..models.pretrained import load as load_pretrained
from . import durable
from ._load import Loaded
from .documents import Trained, evaluation
from .methods import method_name
from .numerics import numerics
from .recipe import Recipe

CHECKED = 1000
"""Validation images, at most, whose predictions are compared; all of them say what can be accepted."""
LARGEST = 0.01
"""By how much a probability may change. Rounding to 11 bits changes a response by 2e-4 of its std, 20 layers with
outputs of std 6 by 2e-4 sqrt(20) 6 = 5.4e-3, and a probability by at most p (1 - p) times a difference of outputs: with
five standard deviations, sqrt(2) 5 5.4e-3 / 4 = 0.0095."""
RISK = 0.01
"""Part of the accepted validation images that may be wrong."""


def publish(
    run: Loaded, name: str, folder: Path, samples: int = 30, progress: Callable[[int], None] = lambda count: None
) -> Pretrained:
    """Write ``NAME.safetensors`` and ``NAME.json``; returns what they hold, read back.

    The predictions of what was written have to be those of the run up to the rounding of the weights, or nothing is
    left there.

    Arguments:
        run: a run that has finished.
        name: by which ``bayesnorm.models.load`` knows it.
        folder: where the files go.
        samples: draws with which it is evaluated, and its predictions are compared.
        progress: called with the number of images after each piece that was evaluated.
    """
    data, card = places(name, folder)
    if run.result is None or run.result["state"] != "finished":
        raise RunError(f"{run.folder.path} has not finished: train it with --resume first")
    content = write_tensors(halved(run.net), {"format": "pt"})
    about = _about(run, name, content)
    made = assemble(about, content).to(run.data.device)
    about |= _compared(run, made, samples if posterior(run.net) else 0) | _metrics(run, samples, progress)
    _write(data, content)
    try:
        _write(card, sealed(about))
        return _read_back(name, folder, made)
    except Exception:
        for path in (card, data):
            path.unlink(missing_ok=True)
        raise


def places(name: str, folder: Path) -> tuple[Path, Path]:
    """The two files of a name, neither of which is there yet."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise RunError(f"name {name!r}: use small letters, digits and single hyphens, as in allcnn-cifar10")
    found = folder / f"{name}.safetensors", folder / f"{name}.json"
    for path in found:
        if path.exists():
            raise RunError(f"{path} is there already: choose another name or folder, or remove it first")
    return found


@torch.no_grad()
def halved(net: nn.Module) -> dict[str, Tensor]:
    """The state of a network, its weights on the unit sphere and in half precision, on the CPU."""
    copied = copy.deepcopy(net).cpu()
    project_(copied)  # changes no output, and keeps weights of any length within the range of half precision
    weights = {name for name, value in copied.named_parameters() if value.dim() > 1}
    state = {
        name: (value.half() if name in weights else value.clone()).contiguous()
        for name, value in copied.state_dict().items()
    }
    for name, value in state.items():
        if not bool(value.isfinite().all()):
            raise RunError(f"{name} has values that half precision does not hold (beyond 65504): train it anew")
    return state


def _about(run: Loaded, name: str, content: bytes) -> dict[str, Any]:
    """The card, as far as it is known without predicting anything."""
    data, config = run.data, run.config
    assert run.result is not None
    about = run.folder.about()
    return {
        "format": FORMAT,
        "name": name,
        "file": {"name": f"{name}.safetensors", "bytes": len(content), "sha256": sha256(content)},
        "network": run.recipe.describe(data).as_dict(),
        "input": _input(data, run.recipe),
        "classes": list(data.classes),
        "per_pixel": data.per_pixel,
        "training": {
            "method": method_name(run.recipe.norm, run.recipe.scale, config.project),
            "seed": config.seed,
            "steps": run.step,
            "lr": run.result["lr"],
            "digest": run.result["digest"],
            "data": about["data"],
            "recipe": {key: value for key, value in run.recipe.as_dict().items() if key != "directory"},
            "config": config.as_dict(),
        },
    }


def _input(data: Data, recipe: Recipe) -> dict[str, Any]:
    return {
        "size": list(data.image_size),
        "reduce": recipe.reduce,
        "bytes": data.train.images.dtype == torch.uint8,
        "range": list(range_of(data)),
        "mean": data.mean.tolist(),
        "std": data.std.tolist(),
    }


def _compared(run: Loaded, made: Pretrained, samples: int) -> dict[str, Any]:
    """How much the predictions of validation images have changed, and up to which entropy they can be trusted."""
    val = run.data.val
    few = val.images[:CHECKED]
    change = 0.0
    with numerics(dataclasses.replace(run.config, precision="fp32"), run.data.device):
        for count in sorted({0, samples}):
            found = _log_probs(made, val.images if count == samples else few, count)
            expected = predict(run.net, run.data.standardized(few), count)
            change = max(change, (found[: len(few)].exp() - expected.probs).abs().max().item())
    if not change <= LARGEST:
        raise RunError(
            f"{run.folder.path} cannot be published in half precision: a probability changes by {change:.2g}, more "
            f"than {LARGEST}; train it {'longer' if run.config.project else 'with projection'}"
        )
    return {
        "halving": {"images": len(few), "largest_change": change},
        "accept": {**accepted(found, val.targets), "samples": samples, "images": len(val)},
    }


def _log_probs(made: Pretrained, images: Tensor, samples: int) -> Tensor:
    """Predictions of any number of images, some at a time."""
    starts = range(0, len(images), CHECKED)
    return torch.cat([made.predict(images[i : i + CHECKED], samples, first=i).log_probs for i in starts])


def accepted(log_probs: Tensor, targets: Tensor) -> dict[str, float | None]:
    """Largest entropy up to which at most one prediction of a hundred is wrong, and which part that is.

    >>> accepted(torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log(), torch.tensor([0, 1]))["coverage"]
    0.5
    """
    curve = error_coverage(log_probs, targets)
    good = (curve.risk <= RISK).nonzero().flatten()
    entropy = curve.threshold[good[-1]].item() if len(good) else None
    return {"risk": RISK, "entropy": entropy, "coverage": curve.coverage_at(RISK)}


def _metrics(run: Loaded, samples: int, progress: Callable[[int], None]) -> dict[str, Any]:
    """Of the run, on the test set; on the validation set where there is none."""
    document = evaluation(Trained.of(run), "test", samples, progress)
    return {"metrics": document["metrics"], "test_images": document["images"], "has_test": run.data.has_test}


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(path, content)
    except (OSError, RunError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        what = getattr(cause, "strerror", None) or error
        raise RunError(f"{path} could not be written ({what}): make room, or choose another folder") from error


def _read_back(name: str, folder: Path, made: Pretrained) -> Pretrained:
    found = load_pretrained(name, folder, made.mean.device)
    expected = made.state_dict()
    for key, value in found.state_dict().items():
        if not torch.equal(value, expected[key]):
            raise RunError(f"{folder / name}.safetensors does not read back: {key} differs from what was written")
    return found
