"""Any network -> the same network with normalized layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from . import norms, scales
from ._calibrate import Start, calibrate, present, starting_points
from ._select import Choice, Selector, select
from ._statistics import patch_stats
from ._tracing import Example, as_tuple, lowered, measure, trace
from ._transaction import undone_on_error
from ._wire import InputStats, has_statistics, remeasure, wire
from .layers import ChannelNorm, NormLayer, norm_layers, normalized_class
from .moments.trace import Trace, leaves
from .norms import Analytic, Batch, NormSpec
from .scales import Bayes, Noise, ScaleSpec


def convert(
    model: nn.Module,
    *,
    norm: str | NormSpec,
    scale: str | ScaleSpec,
    input_stats: InputStats = None,
    include: Selector = None,
    exclude: Selector = None,
    preserve: bool = True,
    inplace: bool = False,
    example: Example | None = None,
    input_size: tuple[int, ...] | None = None,
) -> nn.Module:
    """Normalize the layers of a network; class, forward, methods, hooks and aliases stay as they are.

    A network with BatchNorm gets exactly those replaced; one without gets a norm after each convolution and linear
    layer. The convolution that a BatchNorm follows takes it over and leaves an identity in its place. A network that is
    converted already stays as it is, but for other ``input_stats``, which it takes and goes on to compute the same.

    Arguments:
        model: the network, on any device and in any mode.
        norm: ``"batch"``, ``"weight"``, ``"analytic"``, or ``Batch(...)``, ``Weight()``, ``Analytic(...)``.
        scale: ``"point"``, ``"noise"``, ``"bayes"``, or ``Point()``, ``Noise(...)``, ``Bayes(...)``.
        input_stats: mean and variance per channel of the data as the network sees it (:func:`bayesnorm.input_stats`);
            None means (0, 1). A list of pairs for a network of several inputs.
        include: more layers to normalize, by name pattern, type or predicate ``f(name, module)``, or a list of these.
        exclude: layers to leave alone, likewise.
        preserve: the result computes in evaluation mode what ``model`` computes; False starts with s = 1 and b = 0.
        inplace: change ``model`` itself, whose Parameter objects stay; else a copy is changed.
        example: a batch of inputs, for what has to be measured: operations without a moment rule, patches, new batch
            statistics.
        input_size: size of one input ``(C, H, W)``, where no example is given. It is guessed otherwise, which is enough
            unless the network accepts only one, or averages over the whole image before a layer that starts afresh.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)).eval()
    >>> x = torch.randn(4, 3, 8, 8)
    >>> bayes = convert(net, norm="analytic", scale="bayes")
    >>> torch.allclose(net(x), bayes(x), atol=1e-5)
    True
    """
    norm, scale = norms.parse(norm), scales.parse(scale)
    _check(model, input_size)
    with torch.inference_mode(False):
        if not inplace:
            model = copy.deepcopy(model)
    with torch.inference_mode(False), undone_on_error(model):
        _convert(model, norm, scale, input_stats, include, exclude, preserve, example, input_size)
    return model


def _check(model: nn.Module, input_size: tuple[int, ...] | None) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"convert takes a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, nn.DataParallel):
        raise ValueError(
            "DataParallel copies layers that share one noise: convert the network inside it, and wrap it in "
            "DistributedDataParallel"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel) or hasattr(model, "_orig_mod"):
        raise ValueError(f"{type(model).__name__} is a wrapper: convert the network inside it, then wrap the result")
    for name, module in model.named_modules():
        if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module._parameters.values()):
            raise ValueError(f"{name!r} is lazy and has no parameters yet: run the network on a batch first")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ValueError(
                f"{name!r} is on the meta device and has no values to start from: give the network some first, by "
                "to_empty(device='cpu') and load_state_dict"
            )
    if input_size is not None:
        sizes = input_size if isinstance(input_size, (tuple, list)) else (0,)
        if not all(isinstance(n, int) and n > 0 for n in sizes):
            raise ValueError(
                f"input_size={input_size!r}: pass the size of one input, such as (channels, height, width)"
            )


def _convert(
    model: nn.Module,
    norm: NormSpec,
    scale: ScaleSpec,
    input_stats: InputStats,
    include: Selector,
    exclude: Selector,
    preserve: bool,
    example: Example | None,
    input_size: tuple[int, ...] | None,
) -> None:
    known = norm_layers(model)
    traces = _traces(model, norm, example, input_size, _channels(input_stats))
    choices = select(model, traces, include, exclude)
    if not choices:
        _check_same(known, norm, scale)
        wanting = [layer for layer in known.values() if layer.wants_moments]
        if input_stats is None or not wanting or has_statistics(model, traces, input_stats, wanting[0].scale.s):
            return
    starts = starting_points(model, choices, norm, preserve, example)
    earlier = [(layer, present(layer)) for layer in known.values() if layer.wants_moments]
    for choice in choices:
        _replace(choice, norm, scale, starts[choice.name])
    traces = [lowered(t, choices) for t in traces]
    wire(model, traces, input_stats)
    if choices and isinstance(norm, Analytic) and norm.first_layer == "patch":
        _measure_patches(choices, traces, example)
    fresh = [(cast(NormLayer, choice.module), starts[choice.name]) for choice in choices]
    calibrate([*earlier, *fresh])
    if choices and isinstance(norm, Analytic) and example is not None and not preserve:
        remeasure(model, [layer for layer, _ in fresh], example)


def _channels(input_stats: InputStats) -> int:
    """Number of channels that the statistics speak of; 1 where they do not tell."""
    first = input_stats[0] if isinstance(input_stats, tuple) and input_stats else 0.0
    return max(1, len(first)) if isinstance(first, (tuple, list)) or (isinstance(first, Tensor) and first.dim()) else 1


def _check_same(known: dict[str, NormLayer], norm: NormSpec, scale: ScaleSpec) -> None:
    """Converting twice changes nothing; asking for something else the second time is a mistake."""
    if not known:
        raise ValueError(
            "nothing to normalize: the network calls no BatchNorm, convolution or linear layer that is not excluded"
        )
    for name, layer in known.items():
        if not isinstance(layer.norm, _NORM[type(norm)]) or not isinstance(layer.scale, _SCALE[type(scale)]):
            kinds = f"{type(layer.norm).__name__} and {type(layer.scale).__name__}"
            raise ValueError(
                f"{name!r} is normalized already, with {kinds}: convert the original network, or fold() this one first"
            )
        for spec, held in ((norm, layer.norm.options()), (scale, layer.scale.options())):
            for option, wanted in vars(spec).items():
                if wanted is not None and wanted != held[option]:
                    raise ValueError(
                        f"{name!r} is normalized already, with {type(spec).__name__}({option}={held[option]!r}), not "
                        f"{wanted!r}: convert the original network, or fold() this one first"
                    )


_NORM: dict[type, type[norms.Norm]] = {
    Batch: norms.BatchNorm,
    norms.Weight: norms.WeightNorm,
    Analytic: norms.AnalyticNorm,
}
_SCALE: dict[type, type[scales.Scale]] = {
    scales.Point: scales.PointScale,
    Noise: scales.NoiseScale,
    Bayes: scales.BayesScale,
}


def _traces(
    model: nn.Module, norm: NormSpec, example: Example | None, input_size: tuple[int, ...] | None, channels: int
) -> list[Trace]:
    """Recorded runs: only they tell what the network calls, and what else reads a weight."""
    traces = trace(model, example, input_size, channels)
    return measure(model, example) if isinstance(norm, Analytic) and example is not None else traces


def _replace(choice: Choice, norm: NormSpec, scale: ScaleSpec, start: Start) -> None:
    """Turn a convolution (or a BatchNorm without one) into a normalized layer, in place: references stay valid."""
    module, bn = choice.module, choice.bn
    channels = start.s.numel()
    where = {"device": start.s.device, "dtype": start.s.dtype}
    made_norm = _make_norm(norm, bn, channels, where)
    made_scale = _make_scale(scale, channels, where)
    if isinstance(module.weight, nn.Parameter):  # what is new of a frozen layer is frozen too, but for its noise
        for parameter in (made_scale.s, made_scale.b):
            parameter.requires_grad_(module.weight.requires_grad)
    source = bn if bn is not None else module
    if bn is not None and bn.weight is not None:
        made_scale.s = bn.weight
    if isinstance(source.bias, nn.Parameter):
        made_scale.b = source.bias
    training = module.training
    if choice.standalone:
        module.__dict__["bn_type"] = type(module)
        _strip(module)
        module.__class__ = ChannelNorm
    else:
        module.register_parameter("bias", None)
        module.__class__ = cast(type[NormLayer], normalized_class(module))
        if bn is not None:
            _strip(bn)
            bn.__class__ = nn.Identity  # type: ignore[assignment]
    layer = cast(NormLayer, module)
    layer.attach(made_norm, made_scale, choice.bn_name)
    layer.norm.train(training if bn is None else bn.training)
    layer.scale.train(training)
    start.apply_(layer)


def _make_norm(spec: NormSpec, bn: _BatchNorm | None, channels: int, where: dict[str, Any]) -> norms.Norm:
    if isinstance(spec, Analytic):
        return norms.AnalyticNorm(channels, spec, **where)
    if not isinstance(spec, Batch):
        return norms.WeightNorm(channels, **where)
    momentum = bn.momentum if bn is not None and spec.momentum is None else spec.momentum
    if bn is None and momentum is None:
        momentum = 0.1
    eps = spec.eps if spec.eps is not None else (bn.eps if bn is not None else 1e-5)
    sync = isinstance(bn, SyncBatchNorm)
    return norms.BatchNorm(channels, momentum=momentum, eps=eps, sync=sync, **where)


def _make_scale(spec: ScaleSpec, channels: int, where: dict[str, Any]) -> scales.Scale:
    if isinstance(spec, Bayes):
        return scales.BayesScale(channels, spec, **where)
    if isinstance(spec, Noise):
        return scales.NoiseScale(channels, spec, **where)
    return scales.PointScale(channels, **where)


def _strip(bn: nn.Module) -> None:
    """Remove what made a module a BatchNorm; its hooks stay."""
    bn._parameters.clear()
    bn._buffers.clear()
    for name in ("num_features", "eps", "momentum", "affine", "track_running_stats", "process_group"):
        bn.__dict__.pop(name, None)


def _measure_patches(choices: Sequence[Choice], traces: list[Trace], example: Example | None) -> None:
    """Covariance of the input patches for each layer that reads a network input."""
    if example is None:
        raise ValueError(
            "Analytic(first_layer='patch') measures the patches of the data: pass example= (a batch of inputs)"
        )
    tensors = [x for x in leaves(as_tuple(example)) if isinstance(x, Tensor)]
    inputs = dict(zip(traces[0].inputs, tensors, strict=True))
    used = False
    for choice in choices:
        layer = cast(NormLayer, choice.module)
        sources = {step.inputs()[0] for t in traces for step in t.steps if step.func is layer}
        weight, geometry = layer.weight_vectors(), layer.geometry
        if weight is None or not sources <= set(inputs) or geometry.groups > 1 or geometry.transposed:
            continue
        mean, cov = patch_stats([inputs[slot] for slot in sorted(sources)], layer)
        layer.norm.register_buffer("patch_mean", mean.to(weight.dtype))
        layer.norm.register_buffer("patch_cov", cov.to(weight.dtype))
        used = True
    if not used:
        raise ValueError(
            "Analytic(first_layer='patch'): no layer that is normalized reads an input of the network as it is (a "
            "convolution without groups, not transposed, padded with zeros): leave first_layer out"
        )
