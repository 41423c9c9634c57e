"""The test images of which a network is most and least certain."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._predict import Prediction
from ..data.base import IGNORE, Data
from ..data.passes import images_of
from ..data.picture import encoded, pictures
from .evaluation import predicted_by, ways

Entry = dict[str, Any]


def examples(net: nn.Module, data: Data, samples: int = 30, count: int = 8) -> dict[str, Any]:
    """Most and least certain images of the test split by predictive entropy (mean over pixels), for a file.

    Arguments:
        net: on the device of the data.
        samples: draws of the scales, if the network has any.
        count: images of each kind.

    Returns:
        ``{"way", "classes", "certain": [...], "uncertain": [...]}``, each image with its number, picture, entropy and
        mutual information; a class has ``target`` and ``probs``, pixels have pictures ``truth``, ``predicted`` and
        ``uncertainty``.
    """
    way = ways(net, data, samples)[-1]
    entropies = torch.cat([_of_images(found.entropy) for found in _predictions(net, data, way)])
    order = entropies.argsort(stable=True).tolist()
    count = min(count, len(order) // 2)
    return {
        "way": way,
        "classes": list(data.classes),
        "certain": [_entry(net, data, way, index) for index in order[:count]],
        "uncertain": [_entry(net, data, way, index) for index in order[::-1][:count]],
    }


def _predictions(net: nn.Module, data: Data, way: str) -> Any:
    done = 0
    for images, _ in images_of(data, "test"):
        yield predicted_by(way, net, images, done)
        done += len(images)


def _of_images(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _entry(net: nn.Module, data: Data, way: str, index: int) -> Entry:
    split = data.test[slice(index, index + 1)]
    # Its own number gives it the draws that it had among the others.
    found = predicted_by(way, net, data.standardized(split.images), index)
    entry: Entry = {
        "index": index,
        "image": pictures(data, split.images)[0],
        "entropy": _of_images(found.entropy).item(),
        "mutual_info": _of_images(found.mutual_info).item(),
    }
    return {**entry, **(_maps(data, split.targets, found) if data.per_pixel else _classes(split.targets, found))}


def _classes(targets: Tensor, found: Prediction) -> Entry:
    return {"target": int(targets[0]), "probs": found.probs[0].tolist()}


def _maps(data: Data, targets: Tensor, found: Prediction) -> Entry:
    last = max(1, len(data.classes) - 1)
    truth = targets.where(targets != IGNORE, 0).float() / last
    largest = torch.log(torch.tensor(float(len(data.classes))))
    return {
        "truth": encoded(truth),
        "predicted": encoded(found.probs.argmax(1).float() / last),
        "uncertainty": encoded(found.entropy / largest.to(found.entropy)),
    }
