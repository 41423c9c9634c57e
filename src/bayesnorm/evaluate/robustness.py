"""Accuracy and likelihood where the input is disturbed: by Gaussian noise, and by the gradient-sign attack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import noise
from .._modes import mode
from .._predict import predict
from .._sampling import still
from ..data.base import IGNORE, Data
from ..data.passes import images_of
from .metrics import Metrics, Tally

INPUT_NOISE = 12
"""Domain of the noise stream, beside those of ``data.stream.Purpose`` and ``_scope.py``."""

GRADIENT_PIXELS = 1 << 17
"""Pixels of which a gradient is taken at a time: all activations are kept for it."""

Curve = list[tuple[float, Metrics]]
"""Strengths of a disturbance, each with the metrics under it."""

_Directions = Callable[[Tensor, Tensor, int], Tensor]


def noise_curve(
    net: nn.Module,
    data: Data,
    part: str = "test",
    strengths: Sequence[float] = (0.0, 0.1, 0.2, 0.5, 1.0),
    samples: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
    *,
    limit: int | None = None,
) -> Curve:
    """Metrics of a split under ``x + strength * z``, ``z`` standard normal per value (left part of figure A4).

    The noise of an image depends on the seed and its number in the split alone: all strengths and all networks meet the
    same, and so does a split that is cut differently.

    Arguments:
        net: on the device of the data; evaluated in evaluation mode.
        data: whose split ``part`` is disturbed.
        strengths: std of the noise, in units of the standardized input; 0 is plain evaluation.
        samples: draws of the scales; 0 for a single pass with their means.
        seed: of the noise, and of the augmentation of validation images.
        progress: called with the number of images after each piece.
        limit: at most so many samples of the split, from the first; None: all.

    Returns:
        ``[(strength, Metrics), ...]`` in the order of ``strengths``.
    """

    def directions(images: Tensor, targets: Tensor, first: int) -> Tensor:
        return input_noise(images, first, seed)

    return _curve(net, data, part, strengths, samples, seed, progress, limit, directions)


def attack_curve(
    net: nn.Module,
    data: Data,
    part: str = "test",
    strengths: Sequence[float] = (0.0, 0.01, 0.02, 0.05, 0.1),
    samples: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
    *,
    limit: int | None = None,
) -> Curve:
    """Metrics of a split under ``x + strength * sign(grad_x nll(x))`` (right part of figure A4).

    The attack knows the targets and the network with its mean scales: the gradient is always that of the single pass in
    evaluation mode, also where the attacked images are predicted with ``samples`` draws. What it yields is not clipped
    to valid images. Arguments and result are those of :func:`noise_curve`; ``strengths`` are largest changes of a
    value.
    """

    def directions(images: Tensor, targets: Tensor, first: int) -> Tensor:
        return gradient_sign(net, images, targets)

    return _curve(net, data, part, strengths, samples, seed, progress, limit, directions)


def _curve(
    net: nn.Module,
    data: Data,
    part: str,
    strengths: Sequence[float],
    samples: int,
    seed: int,
    progress: Callable[[int], None],
    limit: int | None,
    directions: _Directions,
) -> Curve:
    """Metrics of ``x + strength * direction(x)``; a direction is found once for all strengths."""
    _check(strengths, limit)
    tallies = [Tally(device=data.device) for _ in strengths]
    done = 0
    for images, targets in images_of(data, part, seed, limit):
        direction = directions(images, targets, done) if any(strengths) else torch.zeros_like(images)
        for strength, tally in zip(strengths, tallies, strict=True):
            disturbed = torch.add(images, direction, alpha=strength)
            tally.update(predict(net, disturbed, samples=samples, first=done).log_probs, targets)
        done += len(images)
        progress(len(images))
    return [(float(strength), tally.compute()) for strength, tally in zip(strengths, tallies, strict=True)]


def _check(strengths: Sequence[float], limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: pass at least 1, or None for the whole split")
    if len(strengths) == 0:
        raise ValueError("strengths=(): pass at least one, such as 0.1")
    for strength in strengths:
        if not 0 <= strength < math.inf:
            raise ValueError(f"strengths: {strength} is among them: each must be finite and not negative")


def input_noise(images: Tensor, first: int = 0, seed: int = 0) -> Tensor:
    """Standard normal noise for images ``(N, ...)`` that are the ones from number ``first`` on of a larger set.

    Unclamped, float32, a function of (seed, number of the image, place in it).

    >>> x = torch.zeros(4, 1, 2, 2)
    >>> torch.equal(input_noise(x)[2:], input_noise(x[2:], first=2))
    True
    """
    key = noise.derive(torch.tensor(seed, dtype=torch.int64, device=images.device), INPUT_NOISE)
    numbers = torch.arange(first, first + len(images), device=images.device)
    rows = noise.rows(key, torch.zeros_like(key), numbers)
    columns = noise.columns(0, images[:1].numel(), images.device)
    return noise.normal(rows, columns, bound=None).view_as(images).to(images.dtype)


def gradient_sign(net: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """``sign(grad_x nll)`` of each image, through the network with its mean scales in evaluation mode.

    No parameter collects a gradient, and every module keeps its mode.

    Arguments:
        images: ``(N, C, H, W)``.
        targets: int64 ``(N,)`` or per pixel ``(N, H, W)``; pixels that are ``IGNORE`` do not count.

    Returns:
        -1, 0 or 1 in the shape of ``images``; 0 where nothing depends on the value.
    """
    size = max(1, GRADIENT_PIXELS // max(1, math.prod(images.shape[2:])))
    with mode(net, False), still(net):
        parts = [_gradient(net, *part).sign() for part in zip(images.split(size), targets.split(size), strict=True)]
    return torch.cat(parts)


def _gradient(net: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    with torch.enable_grad():
        x = images.detach().requires_grad_()
        out = net(x.clone())  # a first layer that works in place may not do so on a leaf
        if not isinstance(out, Tensor):
            raise ValueError(f"the network returned {type(out).__name__}: wrap it so that it returns one tensor")
        return torch.autograd.grad(_loss(out.double(), targets), x)[0]


def _loss(out: Tensor, targets: Tensor) -> Tensor:
    """Has the gradient of the summed nll, each image's times a positive number that keeps it from vanishing.

    ``nll = softplus(m)`` with the margin ``m = log sum_{j != t} exp(out_j) - out_t``, so its gradient is ``sigmoid(m)``
    times that of m. Where the network is certain the factor underflows; only its ratio between pixels of an image
    matters for the sign.
    """
    counts = targets != IGNORE
    index = targets.where(counts, 0).unsqueeze(1)
    rivals = out.scatter(1, index, -math.inf).logsumexp(1)
    margin = (rivals - out.gather(1, index).squeeze(1)).reshape(len(out), -1)
    log_factor = F.logsigmoid(margin.detach()).masked_fill(~counts.view_as(margin), -math.inf)
    largest = log_factor.amax(1, keepdim=True).clamp(min=torch.finfo(out.dtype).min)
    return ((log_factor - largest).exp() * margin).sum()
