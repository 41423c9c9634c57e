"""Weights back on the unit sphere, parameters of the posterior back in their box."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import ChannelNorm, NormLayer, norm_layers
from .moments.core import wide
from .scales import BayesScale, together

MASK = "weight_mask"
"""Buffer with which ``torch.nn.utils.prune`` multiplies ``weight_orig`` before each forward."""


@torch.no_grad()
def project_(net: nn.Module, *, weights: bool = True, momentum: torch.optim.Optimizer | None = None) -> None:
    """Divide the weight vector of every normalized output channel by its length; call it after each step.

    No output changes by that, neither in training nor in evaluation mode, and no buffer is touched: only the
    optimization differs. All-zero vectors stay as they are. Of a layer that ``torch.nn.utils.prune`` pruned it is the
    length of what is left. A Bayesian scale that a step took out of its box (``s >= floor``, ``u`` in [-10, 1000]) is
    put back, which an output can show.

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
        for name, weight in _held(layers).items():
            if id(weight) not in done:
                done.add(id(weight))
                _project_weight(layers[name], weight, momentum)
    together.box_([layer.scale for layer in layers.values() if isinstance(layer.scale, BayesScale)])


def _project_weight(layer: NormLayer, weight: Tensor, optimizer: torch.optim.Optimizer | None) -> None:
    geometry, mask = layer.geometry, layer._buffers.get(MASK)
    length = geometry.lengths(wide(weight if mask is None else weight * mask))
    geometry.scale_(weight, torch.where(length > 0, length.reciprocal(), 1.0))
    state = optimizer.state.get(weight, {}) if optimizer is not None else {}
    vectors = weight if mask is None or not state else weight * mask
    for name in ("momentum_buffer", "exp_avg"):
        buffer = state.get(name)
        if isinstance(buffer, Tensor):
            along = geometry.filters(buffer).mul(geometry.filters(vectors)).sum(1)
            buffer.sub_(geometry.scaled(vectors, along))


def _held(layers: dict[str, NormLayer]) -> dict[str, Tensor]:
    """The parameter that holds the weight vectors of each layer, ``weight_orig`` of a pruned one."""
    found: dict[str, Tensor] = {}
    for name, layer in layers.items():
        if isinstance(layer, ChannelNorm):
            continue
        weight = layer._parameters.get("weight_orig" if MASK in layer._buffers else "weight")
        if weight is None:
            raise ValueError(
                f"the weight of {name!r} is computed from other parameters, which projection does not know: make it a "
                "parameter again (torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm, ...), or "
                "call project_(net, weights=False)"
            )
        found[name] = weight
    return found


def refuse_shared(net: nn.Module, layers: dict[str, NormLayer]) -> None:
    """The length of a weight matters to a layer without normalization, and to one whose vectors in it are others."""
    normalized: dict[int, str] = {}
    for name, weight in _held(layers).items():
        first = normalized.setdefault(id(weight), name)
        if not layers[name].geometry.shares_vectors(layers[first].geometry):
            raise ValueError(
                f"the weight of {first!r} is shared with {name!r}, whose output channels have other vectors of it "
                "(transposed, or in other groups), so that projection would change the network: untie the two, or call "
                "project_(net, weights=False)"
            )
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
