"""The test images of which a network is most and least certain."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._predict import Prediction
from ..data.base import IGNORE, Data, Split
from ..data.passes import images_of
from ..data.picture import LARGEST, encoded, overlaid, pictures, visible
from .evaluation import predicted_by, ways

Entry = dict[str, Any]
FEW = 0.995
"""Share of the pixels of an image that are told apart by colour: single ones far above would leave the others pale."""
SIDE = 256
"""Pixels of the longer side of a segmented image, whose contours are to be seen."""


def examples(net: nn.Module, data: Data, samples: int = 30, count: int = 8) -> dict[str, Any]:
    """Most and least certain images of the test split by predictive entropy (mean over pixels), for a file.

    Arguments:
        net: on the device of the data.
        samples: draws of the scales, if the network has any.
        count: images of each kind.

    Returns:
        ``{"way", "classes", "certain": [...], "uncertain": [...]}``, each image with its number, picture, entropy and
        mutual information; a class has ``target`` and ``probs``, pixels have pictures ``truth``, ``predicted`` and,
        over the image, ``entropy_map`` and ``mutual_info_map``; ``tops`` says what their full colour means, in nats.
    """
    way = ways(net, data, samples)[-1]
    entropies = torch.cat([_of_images(found.entropy) for found in _predictions(net, data, way)])
    order = entropies.argsort(stable=True).tolist()
    count = min(count, len(order) // 2)
    tops = _tops(net, data, way, [*order[:count], *order[::-1][:count]]) if data.per_pixel else {}
    return {
        "way": way,
        "classes": list(data.classes),
        **({"tops": tops} if tops else {}),
        "certain": [_entry(net, data, way, index, tops) for index in order[:count]],
        "uncertain": [_entry(net, data, way, index, tops) for index in order[::-1][:count]],
    }


def _predictions(net: nn.Module, data: Data, way: str) -> Any:
    done = 0
    for images, _ in images_of(data, "test"):
        yield predicted_by(way, net, images, done)
        done += len(images)


def _of_images(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _one(net: nn.Module, data: Data, way: str, index: int) -> Prediction:
    """Of one image: its own number gives it the draws that it had among the others."""
    return predicted_by(way, net, data.standardized(data.test[slice(index, index + 1)].images), index)


def _tops(net: nn.Module, data: Data, way: str, chosen: list[int]) -> dict[str, float]:
    """What the full colour means: the largest possible entropy, the mutual information that few pixels exceed."""
    tops = {"entropy": math.log(len(data.classes))}
    if way != "single":
        maps = [_one(net, data, way, index).mutual_info.flatten().sort().values for index in chosen]
        tops["mutual_info"] = max((values[int(FEW * (len(values) - 1))].item() for values in maps), default=0.0)
    return tops


def _entry(net: nn.Module, data: Data, way: str, index: int, tops: dict[str, float]) -> Entry:
    split = data.test[slice(index, index + 1)]
    found = _one(net, data, way, index)
    entry: Entry = {
        "index": index,
        "image": pictures(data, split.images, SIDE if data.per_pixel else LARGEST)[0],
        "entropy": _of_images(found.entropy).item(),
        "mutual_info": _of_images(found.mutual_info).item(),
    }
    return {**entry, **(_maps(data, split, found, tops) if data.per_pixel else _classes(split.targets, found))}


def _classes(targets: Tensor, found: Prediction) -> Entry:
    return {"target": int(targets[0]), "probs": found.probs[0].tolist()}


def _maps(data: Data, split: Split, found: Prediction, tops: dict[str, float]) -> Entry:
    last = max(1, len(data.classes) - 1)
    truth = split.targets.where(split.targets != IGNORE, 0).float() / last
    image = visible(data, split.images)[0]
    maps = {
        f"{name}_map": encoded(overlaid(image, getattr(found, name)[0] / max(top, 1e-12)), SIDE)
        for name, top in tops.items()
    }
    return {
        "truth": encoded(truth, SIDE),
        "predicted": encoded(found.probs.argmax(1).float() / last, SIDE),
        **maps,
    }
