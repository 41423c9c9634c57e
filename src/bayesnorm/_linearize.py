r"""Predictive distribution without sampling the network: the outputs are linear in the draws of the later scales.

With :math:`\varepsilon` the standard normal draws of all scales (one per channel, shared over space), the outputs are

.. math::
    f(\varepsilon) \approx f(0) + J \varepsilon, \qquad \operatorname{Cov} f = J J^T,

in which the noise of a scale adds in amplitude over space and in variance over channels, as it does in the network.
J is computed backwards, one pass per class, through the last layers only, where the maps are small. The scales before
them are not differentiated. Behind a normalization, noise moves the outputs about as much from wherever it comes, by
its share :math:`r_l^2 = \operatorname{median}_c \sigma_c^2 / (\sigma_c^2 + s_c^2)` in what a channel carries, so the
covariance of the hidden sources is multiplied by
:math:`\sum_{\text{hidden}} r_l^2 / \sum_{\text{differentiated}} r_l^2`. The median, because channels with a very
large :math:`\sigma / s` (up to 17 in All-CNN after 400 epochs) are those that the network has given up: they do not
move the outputs accordingly. The share and not :math:`\sigma^2 / s^2`, which has no bound, because in the cell network
they are most of the channels of the first layers (``docs/log.md``, 2026-11-19).
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ._sampling import drawing
from .layers import NormLayer
from .moments.core import wide
from .runtime import Runtime

COST = 1.5
"""Most that the backward passes may cost, in forward passes."""
POINTS = 128
"""Quasi-random points that average the probabilities over the covariance of the outputs."""


@dataclass(frozen=True)
class Plan:
    """Which scales are differentiated.

    Arguments:
        sources: layers whose draws are, in the order of execution.
        hidden: of these, how many stand before the outputs.
        inflation: factor on the covariance that these cause, for the ones before them.
        per_pixel: whether there is an output at every pixel.
        classes: number of outputs of one input, or of one pixel.
    """

    sources: list[NormLayer]
    hidden: int
    inflation: float
    per_pixel: bool
    classes: int

    @property
    def numbers(self) -> int:
        """Numbers per input that derivatives, covariance (twice, and its root) and quasi-random outputs take."""
        draws = sum(layer.columns.numel() for layer in self.sources)
        return self.classes * (2 * draws + 3 * self.classes + 2 * POINTS)


@torch.no_grad()
def plan(net: nn.Module, networks: Sequence[Runtime], x: Tensor, inflation: float | None) -> Plan:
    """Choose as many of the last scales as ``COST`` allows.

    Arguments:
        x: one input.
        inflation: None: from the posterior, as above.
    """
    work, classes, per_pixel = _known_work(net, x)
    random = [m for m in work if isinstance(m, NormLayer) and m.is_random and m.opening.runtime in networks]
    chosen = _forward(work, random) if per_pixel else _backward(work, random, classes)
    last = random[-1:] if random and random[-1].scale.s.numel() == classes else []
    hidden = [module for module in random if module not in last]
    seen = [module for module in hidden if module in chosen]
    if inflation is None:
        inflation = _inflation(hidden, seen)
    return Plan([module for module in random if module in chosen], len(seen), inflation, per_pixel, classes)


def _backward(work: dict[nn.Module, float], random: list[NormLayer], classes: int) -> set[nn.Module]:
    """Sources where the derivatives cost a pass through what stands behind them for every class."""
    behind, allowed = 0.0, COST * sum(work.values()) / classes
    chosen: set[nn.Module] = set()
    for module in reversed(work):
        if module in random and (behind <= allowed or not chosen):
            chosen.add(module)
        behind += work[module]
    return chosen


def _forward(work: dict[nn.Module, float], random: list[NormLayer]) -> set[nn.Module]:
    """Sources where they cost a pass through what stands behind the first of them for every draw."""
    behind, draws, allowed = 0.0, 0, COST * sum(work.values())
    chosen: set[nn.Module] = set()
    for module in reversed(work):
        if isinstance(module, NormLayer) and module in random:
            draws += module.columns.numel()
            if chosen and (draws + 1) * behind > allowed:
                break
            chosen.add(module)
        behind += work[module]
    return chosen


_Work = tuple[dict[nn.Module, float], int, bool]
_Remembered = tuple[list[tuple[weakref.ref[nn.Module], float]], int, bool]
_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Remembered]] = weakref.WeakKeyDictionary()
"""What was found out about a network, by its layers and the size of its inputs; it keeps no network alive."""


def _known_work(net: nn.Module, x: Tensor) -> _Work:
    """As :func:`_work`, measured once."""
    remembered = _KNOWN.setdefault(net, {})
    place = (x.shape, *[id(module) for module in net.modules() if _has_weight(module)])
    if place in remembered:
        refs, classes, per_pixel = remembered[place]
        layers = [(ref(), amount) for ref, amount in refs]
        if all(module is not None for module, _ in layers):  # otherwise another has the number of one that is gone
            return {cast(nn.Module, module): amount for module, amount in layers}, classes, per_pixel
    work, classes, per_pixel = _work(net, x)
    remembered[place] = [(weakref.ref(module), amount) for module, amount in work.items()], classes, per_pixel
    return work, classes, per_pixel


def _work(net: nn.Module, x: Tensor) -> _Work:
    """Multiplications of each layer that the outputs depend on, as executed; classes; whether pixels have them."""
    work: dict[nn.Module, float] = {}
    probes: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        weight = cast(Tensor, module.weight)
        work.pop(module, None)  # of a layer that is called again the last call counts
        work[module] = output.numel() * weight.numel() / max(weight.size(0), 1)
        probes[module] = torch.zeros((), dtype=output.dtype, device=output.device, requires_grad=True)
        return output + probes[module]

    handles = [module.register_forward_hook(note) for module in net.modules() if _has_weight(module)]
    try:
        with torch.enable_grad():
            out = net(x)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(out, Tensor) or out.dim() < 2:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"method='moments' needs outputs (N, classes, *space), the network returns {shape}: use 'draws'"
        )
    with torch.enable_grad():
        reached = torch.autograd.grad(out.sum(), list(probes.values()), allow_unused=True)
    matter = {module for module, gradient in zip(probes, reached, strict=True) if gradient is not None}
    return {module: amount for module, amount in work.items() if module in matter}, out.size(1), out.dim() > 2


def _has_weight(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() > 1


DEAD = 1e-4
"""Scales below this part of the usual one add nothing to the outputs, whatever their sigma / s."""


def _inflation(hidden: list[NormLayer], seen: list[NormLayer]) -> float:
    """Factor on the covariance of the scales that are seen, for all hidden ones."""
    if not seen:
        return 1.0
    least = DEAD * float(torch.cat([layer.scale.s.abs().flatten() for layer in hidden]).median())
    whole, part = (sum(_relative(layer, least) for layer in layers) for layers in (hidden, seen))
    return whole / part if part > 0 else 1.0


def _relative(layer: NormLayer, least: float) -> float:
    """Share of noise in what a channel carries, median; 0 for scales that are not larger than ``least``."""
    s, variance = layer.scale.s.abs(), layer.scale.spread().square()
    return float(torch.where(s > least, variance / (variance + s**2), torch.zeros_like(s)).median())


def gaussian_outputs(net: nn.Module, networks: Sequence[Runtime], x: Tensor, chosen: Plan) -> tuple[Tensor, Tensor]:
    """Mean ``(N, C)`` and covariance ``(N, C, C)`` of the outputs, float32 or wider."""
    with _frozen(net), torch.enable_grad(), drawing(networks, None):
        wanted = [torch.zeros(len(x), m.columns.numel(), device=x.device, requires_grad=True) for m in chosen.sources]
        for runtime in networks:
            mine = [(m, draw) for m, draw in zip(chosen.sources, wanted, strict=True) if m.opening.runtime is runtime]
            assert runtime.sampling is not None
            runtime.sampling.given = {layer.index: draw for layer, draw in mine}
        out = wide(net(x))
        parts = [part.transpose(0, 1).to(out.dtype) for part in _jacobian(out, wanted)]
        for runtime in networks:
            assert runtime.sampling is not None
            runtime.repeats.forget(runtime.sampling)
    factor = chosen.inflation**0.5
    jacobian = torch.cat([part * factor if i < chosen.hidden else part for i, part in enumerate(parts)], 2)
    return out.detach(), jacobian @ jacobian.mT


def _jacobian(out: Tensor, wanted: list[Tensor]) -> Sequence[Tensor]:
    """Derivatives ``(C, N, channels)`` of the outputs of each input in its own draws."""
    each = torch.eye(out.size(1), device=out.device, dtype=out.dtype).unsqueeze(1).expand(-1, len(out), -1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operations that are batched by a loop
            return torch.autograd.grad(out, wanted, each, retain_graph=True, is_grads_batched=True)
    except RuntimeError:  # an operation that cannot be batched
        rows = [torch.autograd.grad(out, wanted, one, retain_graph=True) for one in each]
        return [torch.stack(columns) for columns in zip(*rows, strict=True)]


def spread_out(mean: Tensor, covariance: Tensor) -> Tensor:
    """Quasi-random outputs ``(POINTS, N, C)`` of a normal distribution, in pairs around the mean."""
    classes = mean.size(1)
    uniform = torch.quasirandom.SobolEngine(classes, scramble=True, seed=0).draw(POINTS // 2, dtype=torch.float64)
    normal = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9)).to(mean)
    # Log-probabilities have a singular covariance: a thousandth of a standard deviation more makes it regular.
    size = (1e-6 * covariance.diagonal(dim1=1, dim2=2).mean(1)).clamp(min=torch.finfo(mean.dtype).tiny)
    jitter = size[:, None, None] * torch.eye(classes, device=mean.device, dtype=mean.dtype)
    root = torch.linalg.cholesky_ex(covariance + jitter).L
    moved = torch.einsum("nck,pk->pnc", root, normal)
    return torch.cat([mean + moved, mean - moved])


_FREEZING = threading.RLock()


@contextmanager
def _frozen(net: nn.Module) -> Iterator[None]:
    """Inside, no parameter records a gradient; one thread at a time, or each would restore what the other had set."""
    with _FREEZING:
        flags = [(parameter, parameter.requires_grad) for parameter in net.parameters()]
        try:
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
