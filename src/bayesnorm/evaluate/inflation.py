"""Prediction by moments, calibrated on data: how much the scales that it does not differentiate add."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .._linearize import gaussian_outputs, plan, spread_out
from .._modes import mode
from .._predict import average, predict
from .._sampling import runtimes, still

RANGE = (0.05, 20.0)
"""Factors between which one is fitted."""


@torch.no_grad()
def fit_inflation(net: nn.Module, x: Tensor, samples: int = 300) -> float:
    """``inflation`` for ``predict(net, x, method="moments")`` that comes closest to the mean over draws.

    ``predict`` estimates the factor from the posterior; this fits it, once: it minimizes the mean of ``KL(p || q)``
    over the inputs, with p the prediction by draws and q that by moments. No targets are needed.

    Arguments:
        x: some inputs ``(N, ...)`` that were not trained on, such as 200 validation images.
        samples: number of draws.

    Returns:
        a factor in ``RANGE``; 1 where nothing stands before the layers that are differentiated.
    """
    from scipy.optimize import minimize_scalar

    networks = [found for found in runtimes(net) if any(layer.is_random for layer in found.layers)]
    if not networks:
        raise ValueError(f"{type(net).__name__} has no random scale: there is nothing to fit")
    with mode(net, False), still(net):
        if plan(net, networks, x[:1], 1.0).per_pixel:
            raise ValueError(
                f"{type(net).__name__} has outputs of more than one place: fit_inflation is for one prediction per "
                "input; predict(method='moments') of pixels takes an inflation= by hand"
            )
    wanted = predict(net, x, samples).probs
    with mode(net, False), still(net):
        (mean, once), (_, twice) = (
            gaussian_outputs(net, networks, x, plan(net, networks, x[:1], factor)) for factor in (1.0, 2.0)
        )
    mean, once, twice = mean.double(), once.double(), twice.double()  # the minimum is flat
    hidden, last = twice - once, 2 * once - twice
    if not hidden.diagonal(dim1=1, dim2=2).sum() > 0:
        return 1.0

    def distance(log_factor: float) -> float:
        """But for the entropy of p."""
        outputs = spread_out(mean, math.exp(log_factor) * hidden + last)
        return -(wanted * average(iter([outputs]), "logits")[1]).sum(1).mean().item()

    bounds = tuple(math.log(limit) for limit in RANGE)
    return math.exp(minimize_scalar(distance, bounds=bounds, method="bounded", options={"xatol": 1e-3}).x)
