"""Where a normalized layer starts: so that the network computes what it computed before, or afresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ._modes import mode
from ._select import Choice
from ._statistics import watched
from ._tracing import Example, as_tuple
from .layers import NormLayer, normalized_class
from .moments.core import Moments
from .moments.program import Propagating, as_vectors
from .norms import Batch, BatchNorm, NormSpec
from .norms.base import Pair, root


@dataclass
class Start:
    """First scale, bias and statistics of a layer.

    Arguments:
        s, b: scale (not negative) and bias of the normalized response; where ``free``, they follow from its statistics.
        mean, std: mean and signed std by which the response ``w.x`` was normalized; None: by its own statistics.
        length: length of each weight vector.
        free: there was no normalization: s and b undo the new one, ``b`` holding the layer's own bias.
        batches: how many batches the running statistics have seen.
    """

    s: Tensor
    b: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None
    length: Tensor | None = None
    free: bool = False
    batches: Tensor | None = None

    @torch.no_grad()
    def apply_(self, layer: NormLayer) -> None:
        """Set scale and bias; of batch normalization also the running statistics."""
        layer.scale.set_(self.s, self.b)
        if isinstance(layer.norm, BatchNorm) and self.mean is not None and self.std is not None:
            # A response this much larger leaves room for an eps above the variance that it was normalized by.
            factor = (layer.norm.eps**0.5 / self.std.abs()).clamp(min=1) * torch.where(self.std < 0, -1.0, 1.0)
            layer.norm.spread.copy_(factor if self.length is None else factor * self.length)
            layer.norm.running_mean.copy_(factor * self.mean)
            layer.norm.running_var.copy_(((factor * self.std).square() - layer.norm.eps).clamp(min=0))
            if self.batches is not None:
                layer.norm.num_batches_tracked.copy_(self.batches)


def starting_points(
    model: nn.Module, choices: Sequence[Choice], norm: NormSpec, preserve: bool, example: Example | None
) -> dict[str, Start]:
    """The start of every chosen layer, read off the network before it is changed."""
    measured = _measured(model, choices, norm, preserve, example)
    like = next((p.detach() for p in model.parameters()), torch.empty(0))
    return {choice.name: _start(choice, norm, preserve, measured.get(choice.module), like) for choice in choices}


def _measured(
    model: nn.Module, choices: Sequence[Choice], norm: NormSpec, preserve: bool, example: Example | None
) -> dict[nn.Module, Pair]:
    """Statistics of the example, for layers whose batch statistics nobody has yet."""
    missing = {}
    for choice in choices:
        if choice.bn is not None and choice.bn.running_mean is None:
            missing[choice.module] = "input" if choice.standalone else "output"
        elif choice.bn is None and isinstance(norm, Batch):
            missing[choice.module] = "output"
    if not missing or not preserve:
        return {}
    if example is None:
        names = [choice.name for choice in choices if choice.module in missing]
        raise ValueError(
            f"{names[0]!r} has no running statistics to start from, so the network cannot be preserved: pass example= "
            "(a batch of inputs) to measure them, or preserve=False to start with s = 1 and b = 0"
        )
    with mode(model, False), torch.no_grad(), watched(missing) as found:
        model(*as_tuple(example))
    return found


def _start(choice: Choice, norm: NormSpec, preserve: bool, measured: Pair | None, default: Tensor) -> Start:
    bn, module = choice.bn, choice.module
    like = _like(choice, default)
    zero, one = torch.zeros_like(like), torch.ones_like(like)
    bias = zero if choice.standalone or module.bias is None else cast(Tensor, module.bias).detach().to(like)
    length = None if choice.standalone else _lengths(module)
    mean = std = None
    if measured is not None:
        mean, var = (t.to(like.device) for t in measured)
        std = (var + _eps(choice, norm)).sqrt()
    elif bn is not None and bn.running_mean is not None and bn.running_var is not None:
        mean, std = bn.running_mean.double(), (bn.running_var.double() + bn.eps).sqrt()
    if not preserve:
        # An affine map of the running statistics is all that weight norm makes of a BatchNorm without a convolution.
        keep = choice.standalone and not isinstance(norm, Batch)
        return Start(one, zero, mean if keep else None, std if keep else None, length)
    if bn is None:
        if mean is None or std is None:
            return Start(one, bias, length=length, free=True)
        return Start(std.to(like), mean.to(like), mean - bias, std, length)
    gamma = one if bn.weight is None else bn.weight.detach()
    beta = zero if bn.bias is None else bn.bias.detach()
    assert mean is not None
    assert std is not None
    signed = torch.where(gamma < 0, -std, std)
    return Start(gamma.abs().clone(), beta.clone(), mean - bias, signed, length, batches=bn.num_batches_tracked)


def _eps(choice: Choice, norm: NormSpec) -> float:
    if choice.bn is not None:
        return choice.bn.eps
    return norm.eps if isinstance(norm, Batch) and norm.eps is not None else 1e-5


def _like(choice: Choice, default: Tensor) -> Tensor:
    """An empty vector of the layer's channels, dtype and device."""
    if choice.standalone:
        bn = choice.bn
        assert bn is not None
        tensors = [t for t in (bn.weight, bn.running_mean) if t is not None]
        found = tensors[0].detach() if tensors else default
        return torch.empty(bn.num_features, dtype=found.dtype, device=found.device)
    weight = cast(Tensor, choice.module.weight)
    channels = choice.module.out_features if isinstance(choice.module, nn.Linear) else choice.module.out_channels
    return torch.empty(cast(int, channels), dtype=weight.dtype, device=weight.device)


def _lengths(module: nn.Module) -> Tensor:
    geometry = cast(type[NormLayer], normalized_class(module)).geometry_of(module)
    return root(geometry.square_norms(cast(Tensor, module.weight).detach().double()))


@torch.no_grad()
def calibrate(layers: Sequence[tuple[NormLayer, Start]]) -> None:
    """Fix the constants of weight and analytic normalization so that each layer normalizes as its start says."""
    starts = dict(layers)
    program = layers[0][0].opening.runtime.program
    statistics: dict[nn.Module, Pair | None] = dict.fromkeys(starts)
    if program is not None:
        plan = program.plan([layer for layer in program.sites if cast(NormLayer, layer).wants_moments])

        def visit(layer: Propagating, m: Moments) -> None:
            layer = cast(NormLayer, layer)
            start = starts.get(layer)
            if start is not None and start.free and start.mean is None:
                _undo(layer, start, as_vectors(m, layer))

        program.run(plan, visit)
        found = program.run(plan)
        statistics.update(zip(plan.layers, found, strict=True))
    for layer, start in layers:
        if isinstance(layer.norm, BatchNorm):
            continue
        if start.free and start.mean is None:
            _undo(layer, start, statistics[layer])
        if start.mean is not None and start.std is not None:
            measured = layer.norm.statistics(layer.weight_vectors(), layer.geometry, statistics[layer])
            layer.norm.calibrate_(measured, start.mean, start.std)


@torch.no_grad()
def present(layer: NormLayer) -> Start:
    """How a layer normalizes now, to be kept when its input's statistics are propagated in another way."""
    statistics = layer.opening.runtime.statistics(layer.opening).get(layer.index)
    mu, sigma = layer.norm.statistics(layer.weight_vectors(), layer.geometry, statistics)
    return Start(layer.scale.s, layer.scale.b, mu + layer.norm.center * sigma, layer.norm.spread * sigma)


def _undo(layer: NormLayer, start: Start, moments: Pair | None) -> None:
    """Scale and bias with which a new normalization changes nothing."""
    mu, sigma = layer.norm.statistics(layer.weight_vectors(), layer.geometry, moments)
    start.mean, start.std = mu.clone(), sigma.clone()
    layer.scale.set_(sigma, mu + start.b)
