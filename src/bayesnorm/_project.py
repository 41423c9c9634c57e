"""Weights back on the unit sphere, parameters of the posterior back in their box."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .layers import NormLayer, norm_layers
from .moments.core import wide
from .scales import BayesScale, together


@torch.no_grad()
def project_(net: nn.Module, *, weights: bool = True, momentum: torch.optim.Optimizer | None = None) -> None:
    """Divide the weight vector of every normalized output channel by its length; call it after each step.

    No output changes, neither in training nor in evaluation mode, and no buffer is touched: only the optimization
    differs. All-zero vectors stay as they are. The Bayesian scale is kept in its box (``s >= floor``, ``u`` in [-10,
    1000]).

    Arguments:
        weights: False leaves the weights alone and does the box only.
        momentum: an optimizer whose momentum of these weights is made orthogonal to them as well.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="point")
    >>> project_(net)
    >>> torch.allclose(net[0].weight.norm(dim=1), torch.ones(3))
    True
    """
    layers = norm_layers(net)
    if weights:
        refuse_shared(net, layers)
        done: set[int] = set()
        for layer in layers.values():
            if layer.weight_vectors() is None or id(layer.weight) in done:
                continue
            done.add(id(layer.weight))
            _project_weight(layer, cast(Tensor, layer.weight), momentum)
    together.box_([layer.scale for layer in layers.values() if isinstance(layer.scale, BayesScale)])


def _project_weight(layer: NormLayer, weight: Tensor, optimizer: torch.optim.Optimizer | None) -> None:
    geometry = layer.geometry
    length = geometry.lengths(wide(weight))
    factor = torch.where(length > 0, length.reciprocal(), 1.0)
    geometry.scale_(weight, factor.to(weight.dtype))
    state = optimizer.state.get(weight, {}) if optimizer is not None else {}
    for name in ("momentum_buffer", "exp_avg"):
        buffer = state.get(name)
        if isinstance(buffer, Tensor):
            along = geometry.filters(buffer).mul(geometry.filters(weight)).sum(1)
            buffer.sub_(geometry.scaled(weight, along))


def refuse_shared(net: nn.Module, layers: dict[str, NormLayer]) -> None:
    """The length of a weight matters to a layer without normalization."""
    normalized = {id(layer.weight): name for name, layer in layers.items() if layer.weight_vectors() is not None}
    for path, module in net.named_modules():
        if isinstance(module, NormLayer):
            continue
        for name, parameter in module._parameters.items():
            if id(parameter) in normalized:
                where = f"{path}.{name}".lstrip(".")
                raise ValueError(
                    f"the weight of {normalized[id(parameter)]!r} is shared with {where!r}, which is not normalized, "
                    "so that projection would change the network: untie the two, or convert with exclude= for the first"
                )
