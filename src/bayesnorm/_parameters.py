"""Parameter groups of a normalized network for torch's optimizers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from .layers import norm_layers
from .scales import BayesScale

VARIANCE_STEP = 100.0
"""The gradient of the KL in u is about 1/N per step: u needs a larger step than the weights."""


def param_groups(
    net: nn.Module,
    lr: float,
    *,
    variance_lr: float | None = None,
    known: torch.optim.Optimizer | None = None,
) -> list[dict[str, Any]]:
    """Groups ``weights``, ``scales`` (s, b and all other vectors) and ``variances`` (u), none with weight decay.

    Arguments:
        lr: step of weights and scales.
        variance_lr: step of the variance parameters; None: 100 times ``lr``.
        known: an optimizer made before the conversion: only what it lacks is returned, for its ``add_param_group``.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes")
    >>> [(group["name"], group["lr"], len(group["params"])) for group in param_groups(net, lr=0.01)]
    [('weights', 0.01, 1), ('scales', 0.01, 2), ('variances', 1.0, 1)]
    """
    for name, step in (("lr", lr), ("variance_lr", variance_lr)):
        if step is not None and not 0 < step < math.inf:
            raise ValueError(f"{name}={step}: must be positive")
    scales = [layer.scale for layer in norm_layers(net).values()]
    variances = {id(p) for scale in scales if isinstance(scale, BayesScale) for p in scale.variance_parameters()}
    affine = {id(p) for scale in scales for p in (scale.s, scale.b)}
    taken = set() if known is None else {id(p) for group in known.param_groups for p in group["params"]}
    named: dict[str, list[nn.Parameter]] = {"weights": [], "scales": [], "variances": []}
    for parameter in net.parameters():
        if id(parameter) in taken or not parameter.requires_grad:
            continue
        if id(parameter) in variances:
            named["variances"].append(parameter)
        elif id(parameter) in affine or parameter.dim() < 2:
            named["scales"].append(parameter)
        else:
            named["weights"].append(parameter)
    steps = {"weights": lr, "scales": lr, "variances": VARIANCE_STEP * lr if variance_lr is None else variance_lr}
    return [
        {"params": params, "lr": steps[name], "weight_decay": 0.0, "name": name}
        for name, params in named.items()
        if params
    ]
