r"""Prediction by moments where every pixel has an output: derivatives forwards, one draw at a time.

The outputs are too many to differentiate each (:mod:`bayesnorm._linearize`), but the draws of the last scales are few:
a column of J is a difference,

.. math::
    J e_k \approx (f(h e_k) - f(0)) / h,

of passes that share all that stands before the first of these scales. The covariance of the outputs of a pixel is
:math:`J_p J_p^T`; as the draws are shared over space, so are the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ._linearize import Plan, spread_out
from ._sampling import drawing
from .moments.core import wide
from .runtime import Runtime

STEP = 0.1
"""Of the differences, in standard deviations of a draw."""
PIXELS = 1 << 15
"""Pixels whose probabilities are averaged at a time."""


def gaussian_pixels(net: nn.Module, networks: Sequence[Runtime], x: Tensor, chosen: Plan) -> tuple[Tensor, Tensor]:
    """Mean ``(N, C, *space)`` of the outputs and their derivatives ``(K, N, C, *space)`` in K draws."""
    sizes = [layer.columns.numel() for layer in chosen.sources]
    steps = torch.eye(sum(sizes) + 1, device=x.device)[:, 1:] * STEP  # the first pass is that of the means
    parts = steps.repeat_interleave(len(x), 0).split(sizes, 1)
    alone = len(networks) == 1 and networks[0].root is net and networks[0].expands
    out = _passed(net, networks, x, chosen, parts, len(steps), True) if alone else None
    if out is None:
        out = _passed(net, networks, x, chosen, parts, len(steps), False)
    assert out is not None
    outputs = wide(out).unflatten(0, (len(steps), len(x)))
    jacobian = (outputs[1:] - outputs[:1]) / STEP
    hidden = sum(sizes[: chosen.hidden])
    jacobian[:hidden] *= chosen.inflation**0.5
    return outputs[0], jacobian


def _passed(
    net: nn.Module,
    networks: Sequence[Runtime],
    x: Tensor,
    chosen: Plan,
    parts: Sequence[Tensor],
    count: int,
    expands: bool,
) -> Tensor | None:
    """Outputs of all passes; None where the first of the scales cannot expand the batch, as a way around it does."""
    with drawing(networks, None, repeats=False):
        for runtime in networks:
            assert runtime.sampling is not None
            mine = zip(chosen.sources, parts, strict=True)
            given = {layer.index: part for layer, part in mine if layer.opening.runtime is runtime}
            index = torch.arange(count, device=x.device)
            runtime.sampling = replace(runtime.sampling, index=index, expands=expands, given=given)
        if not expands:
            return _tensor(net(x.repeat(count, *[1] * (x.dim() - 1))))
        try:
            out = _tensor(net(x))
        except Exception:
            return None
    return out if out.size(0) == count * len(x) else None


def _tensor(out: object) -> Tensor:
    assert isinstance(out, Tensor)
    return out


def pixel_outputs(mean: Tensor, jacobian: Tensor) -> Iterator[Tensor]:
    """Quasi-random outputs ``(points, pixels, C)``, some pixels at a time; of what :func:`gaussian_pixels` returns."""
    flat = mean.movedim(1, -1).flatten(0, -2)
    columns = jacobian.movedim(2, -1).flatten(1, -2).permute(1, 2, 0)  # (pixels, C, K)
    for some, derived in zip(flat.split(PIXELS), columns.split(PIXELS), strict=True):
        # In float64: the covariance of log-probabilities is singular, and so many draws add up to its rounding.
        wider = derived.double()
        yield spread_out(some.double(), wider @ wider.mT).to(mean.dtype)
