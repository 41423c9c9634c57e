"""Predictive distribution: a single pass with the mean scales, or the average over draws of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ._linearize import Plan, gaussian_outputs, plan, spread_out
from ._modes import mode
from ._pixel_moments import gaussian_pixels, pixel_outputs
from ._sampling import drawing, runtimes, still
from .moments.core import wide
from .runtime import Runtime

BUDGET = 24 << 20
"""Bytes of activations that one forward pass may use on a CPU, where small passes stay in the cache and are faster."""
MATRICES = 4
"""Budgets for derivatives and covariances of the outputs, which no cache has to hold."""
CUDA_BUDGET = 8 << 30
"""The same on a GPU, if a quarter of the free memory is not less: larger passes are not faster."""


@dataclass(frozen=True)
class Prediction:
    """Predictive distribution of each input, classes on axis 1.

    Arguments:
        probs: mean of the class probabilities over the draws.
        log_probs: their logarithm.
        entropy: entropy of ``probs``, in nats.
        mutual_info: entropy minus the mean entropy of the draws: the part of it that is due to not knowing the scales.
    """

    probs: Tensor
    log_probs: Tensor
    entropy: Tensor
    mutual_info: Tensor


def predict(
    net: nn.Module,
    x: Tensor,
    samples: int = 30,
    *,
    shared: bool = False,
    generator: torch.Generator | None = None,
    output: Literal["logits", "log_probs"] = "logits",
    max_rows: int | None = None,
    first: int = 0,
    method: Literal["draws", "moments"] = "draws",
    inflation: float | None = None,
    antithetic: bool = False,
) -> Prediction:
    """Predict with ``samples`` draws of the scales (0: one pass with their means), in evaluation mode, without
    gradients.

    Draw i of input j depends on the network's key, i and j alone, not on how the work is cut into pieces (samples that
    the forward makes of one input, as of its frames, must stand side by side in the batch). Many draws share one
    pass; what stands before the first random scale is computed once. Batch norm uses its running statistics.
    Threads may predict with one network at a time, if it is in evaluation mode.

    Arguments:
        x: inputs ``(N, ...)``.
        shared: one draw of the scales per Monte Carlo sample for all inputs, instead of one per input.
        generator: gives another key, hence other draws.
        output: what the network returns: ``"logits"`` (also right for log-probabilities, which normalize to themselves)
            or ``"log_probs"``, taken as they are.
        max_rows: largest batch of one forward pass; None: by memory.
        method: ``"draws"``, or ``"moments"``: the outputs of an input are taken as normal, with the covariance that
            follows from the posterior by linearization, at the cost of a few single passes; ``samples``, ``shared``
            and ``generator`` do not matter then.
        inflation: with ``"moments"``, factor on the covariance for the scales of early layers, which are not
            differentiated; None: estimated from the posterior. ``evaluate.fit_inflation`` measures it.
        antithetic: every second draw is the one before it with the opposite sign. The mean over an even number of draws
            then errs less, by a third to a half for ten of them and less for more; the draws are no longer independent.
        first: number of the first input, where ``x`` is a part of a larger set that is predicted piece by piece.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes")
    >>> out = predict(net, torch.randn(5, 4), samples=10)
    >>> out.probs.shape, bool((out.mutual_info >= 0).all())
    (torch.Size([5, 3]), True)
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"predict takes the inputs as one tensor (N, ...), not {type(x).__name__}")
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"samples={samples}: pass the number of draws, or 0 for a single pass with the mean scales")
    if output not in ("logits", "log_probs"):
        raise ValueError(f"output={output!r}: choose 'logits' or 'log_probs'")
    if len(x) == 0:
        raise ValueError(f"predict: x of shape {tuple(x.shape)} holds no input: pass at least one")
    if method not in ("draws", "moments"):
        raise ValueError(f"method={method!r}: choose 'draws' or 'moments'")
    if inflation is not None and not 0 < inflation < math.inf:
        raise ValueError(f"inflation={inflation}: must be positive and finite")
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows={max_rows}: must be at least 1")
    rows = max_rows if max_rows is not None else _affordable_rows(net, x)
    results = []
    inside = runtimes(net) if samples or method == "moments" else []
    networks = [runtime for runtime in inside if any(layer.is_random for layer in runtime.layers)]
    if method == "moments" and networks:
        with still(net):
            return _by_moments(net, networks, x, rows, inflation, max_rows is None)
    with (
        mode(net, False),
        torch.no_grad(),
        still(net),
        drawing(networks, generator, shared=shared, memory={}, antithetic=antithetic, repeats=False),
    ):
        # All draws of a part in one pass: what stands before the first random scale is then computed once.
        size = max(1, rows // samples) if _expands(net, networks) else rows
        for start in range(0, len(x), size):
            part = x[start : start + size]
            if networks:
                draws = _draws(net, networks, part, first + start, samples, max(1, rows // len(part)))
            else:
                draws = iter([_outputs(net(part), len(part))[None]])
            results.append(average(draws, output))
    return Prediction(*[torch.cat(parts) for parts in zip(*results, strict=True)])


def _by_moments(
    net: nn.Module, networks: list[Runtime], x: Tensor, rows: int, inflation: float | None, by_memory: bool
) -> Prediction:
    with torch.inference_mode(False), mode(net, False), torch.no_grad():
        x = x.clone() if x.is_inference() else x
        chosen = plan(net, networks, x[:1], inflation)
        if chosen.per_pixel:
            return _by_pixel_moments(net, networks, x, rows, chosen)
        if by_memory:
            rows = max(1, min(rows, MATRICES * _budget(x) // (x.element_size() * chosen.numbers)))
        results = []
        for part in x.split(rows):
            outputs = spread_out(*gaussian_outputs(net, networks, part, chosen))
            results.append(average(iter([outputs]), "logits"))
    return Prediction(*[torch.cat(parts) for parts in zip(*results, strict=True)])


def _by_pixel_moments(net: nn.Module, networks: list[Runtime], x: Tensor, rows: int, chosen: Plan) -> Prediction:
    draws = sum(layer.columns.numel() for layer in chosen.sources) + 1
    results = []
    for part in x.split(max(1, rows // draws)):
        mean, jacobian = gaussian_pixels(net, networks, part, chosen)
        pieces = [average(iter([outputs]), "logits") for outputs in pixel_outputs(mean, jacobian)]
        probs, logs, entropy, mutual = (torch.cat(values) for values in zip(*pieces, strict=True))
        place = (len(mean), *mean.shape[2:])
        shaped = [values.view(*place, -1).movedim(-1, 1).contiguous() for values in (probs, logs)]
        results.append((*shaped, entropy.view(place), mutual.view(place)))
    return Prediction(*[torch.cat(parts) for parts in zip(*results, strict=True)])


def _draws(net: nn.Module, networks: list[Runtime], x: Tensor, first: int, samples: int, most: int) -> Iterator[Tensor]:
    """Outputs ``(K, N, ...)`` of up to ``most`` draws at a time."""
    for start in range(0, samples, most):
        count = min(most, samples - start)
        expands = _expands(net, networks)
        out = _expanded(net, networks, x, first, start, count) if expands else None
        if out is None:
            out = _pass(net, networks, x, first, start, count, False)
            if expands:
                networks[0].expands = False
        yield out.unflatten(0, (count, len(x)))


def _expanded(net: nn.Module, networks: list[Runtime], x: Tensor, first: int, start: int, count: int) -> Tensor | None:
    """One pass that expands on the way; None for a forward that reads the batch size off its input and cannot."""
    try:
        out = _pass(net, networks, x, first, start, count, True)
    except Exception:
        return None
    return out


def _expands(net: nn.Module, networks: list[Runtime]) -> bool:
    """Whether the inputs are passed once and expanded to the draws by the first random layer."""
    return len(networks) == 1 and networks[0].root is net and networks[0].expands


def _pass(
    net: nn.Module, networks: list[Runtime], x: Tensor, first: int, start: int, count: int, expands: bool
) -> Tensor:
    """One forward pass for draws ``start`` to ``start + count`` of inputs that begin at ``first``."""
    for runtime in networks:
        assert runtime.sampling is not None
        index = torch.arange(start, start + count, device=runtime.sampling.key.device)
        runtime.sampling = replace(runtime.sampling, index=index, first=first, expands=expands)
    return _outputs(net(x if expands else x.repeat(count, *[1] * (x.dim() - 1))), count * len(x))


def _outputs(out: object, rows: int) -> Tensor:
    """What the network returned, if it is ``(rows, classes, ...)``."""
    if not isinstance(out, Tensor):
        raise ValueError(f"predict: the network returned {type(out).__name__}: wrap it so that it returns one tensor")
    if out.dim() < 2 or out.size(1) < 2:
        raise ValueError(
            f"predict: the network returned a tensor {tuple(out.shape)}, classes belong on axis 1: give it an output "
            "for each of them (of two classes with one logit z, wrap it to return 0 and z)"
        )
    if out.size(0) != rows:
        raise ValueError(
            f"predict: the network returned {out.size(0)} rows for {rows} inputs: wrap it so that each has one"
        )
    return out


def average(draws: Iterator[Tensor], output: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean of the probabilities over the draws, its logarithm, entropy and mutual information."""
    total: Tensor | None = None
    entropies: Tensor | float = 0.0
    count = 0
    for out in draws:
        # Classes first: over a short last axis log_softmax is twenty times slower.
        logs = wide(out).movedim(2, 0).contiguous()
        logs = logs.log_softmax(0) if output == "logits" else logs
        part = logs.logsumexp(1)
        total = part if total is None else torch.logaddexp(total, part)
        # The bound keeps 0 * inf out.
        entropies = entropies - (logs.exp() * logs.clamp(min=-1e4)).sum((0, 1))
        count += len(out)
    assert total is not None
    log_probs = (total - math.log(count)).movedim(0, 1).contiguous()
    probs = log_probs.exp()
    entropy = torch.special.entr(probs).sum(1)
    mutual = torch.zeros_like(entropy) if count == 1 else (entropy - entropies / count).clamp(min=0)
    return probs, log_probs, entropy, mutual


def _affordable_rows(net: nn.Module, x: Tensor) -> int:
    """Batch size whose activations fit the budget, by the sizes seen when the network was converted."""
    networks = runtimes(net)
    if not networks:
        return 256
    traced_input, activations = networks[0].activations
    per_row = activations * x[0].numel() / traced_input * x.element_size()
    return max(1, int(_budget(x) / per_row))


def _budget(x: Tensor) -> int:
    """Bytes for one forward pass."""
    return min(torch.cuda.mem_get_info(x.device)[0] // 4, CUDA_BUDGET) if x.is_cuda else BUDGET
