"""A network of this package with norms after its convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from .._convert import convert
from .._select import Selector
from .._wire import InputStats
from ..norms import NormSpec
from ..scales import ScaleSpec


def normalized(
    net: nn.Module,
    norm: str | NormSpec | None,
    scale: str | ScaleSpec,
    input_stats: InputStats,
    example: Tensor | None,
    input_size: tuple[int, ...],
    exclude: Selector = None,
) -> nn.Module:
    """``net`` itself, converted to start with s = 1 and b = 0; left plain where ``norm`` is None."""
    if norm is None:
        return net
    return convert(
        net,
        norm=norm,
        scale=scale,
        input_stats=input_stats,
        exclude=exclude,
        example=example,
        preserve=False,
        inplace=True,
        input_size=input_size,
    )
