"""The kernels of batch normalization, each with what it reads and writes."""

from __future__ import annotations

from typing import Any

from .maps import sums
from .stack import Stack
from .tiles import forward_parts, power

TOGETHER = 32
"""Samples whose sums are added at a time."""


def pixels(stack: Stack, i: int, size: int) -> None:
    """Sums of a response, and of its square, over the pixels of each sample."""
    response, found = stack.responses[i], (stack.pixel_sums, stack.pixel_squares)
    sums(stack, i, size, forward_parts(stack.layout.links[i]), stack.forward_sums[i], (response, response), found)


def normalize(stack: Stack, i: int, size: int) -> None:
    """Activation of a normalized response; running averages."""
    from ._batch import normalize_kernel

    grid, sizes = _tiles(stack, i, size)
    normalize_kernel[grid](
        *(stack.responses[i], stack.pixel_sums, stack.pixel_squares, stack.inner, stack.factor, stack.summand),
        *(stack.running, stack.batch, stack.active, stack.outputs[i], stack.layout.row_first[i]),
        *(stack.chain.eps, stack.chain.momentum),
        OW=stack.layout.links[i].out_width,
        FRAME=stack.frame(i),
        SLOPE=stack.chain.slope,
        **sizes,
    )


def head(stack: Stack, size: int) -> None:
    """Loss, and the gradient of the last normalized response."""
    from ._batch import batch_head_kernel

    link, layout = stack.layout.links[-1], stack.layout
    batch_head_kernel[(size, stack.models)](
        *(stack.pixel_sums, stack.pixel_squares, stack.inner, stack.factor, stack.summand, stack.targets),
        *(stack.running, stack.batch, stack.active, stack.for_factor, stack.for_summand, stack.losses),
        *(stack.gradients[-1], layout.row_first[-1], stack.chain.eps, stack.chain.momentum),
        ROWS=layout.pitch,
        BATCH=size,
        LIMIT=stack.terms.batch,
        OUT=link.outputs,
        PIXELS=link.pixels,
        BP=min(16, power(link.pixels)),
        BO=power(link.outputs),
        BB=TOGETHER,
    )


def unnormalize(stack: Stack, i: int, size: int) -> None:
    """Back through the normalization of a response."""
    from ._batch import unnormalize_kernel

    grid, sizes = _tiles(stack, i, size)
    unnormalize_kernel[grid](
        *(stack.gradients[i], stack.responses[i], stack.batch, stack.factor, stack.for_factor, stack.for_summand),
        *(stack.active, stack.layout.row_first[i]),
        **sizes,
    )


def _tiles(stack: Stack, i: int, size: int) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Programs and constants of what is done to every number of a response."""
    link = stack.layout.links[i]
    columns, rows = 32, min(128, power(link.pixels))
    tiles = -(-link.pixels // rows)
    return (size * tiles, -(-link.outputs // columns), stack.models), {
        "ROWS": stack.layout.pitch,
        "BATCH": size,
        "LIMIT": stack.terms.batch,
        "OUT": link.outputs,
        "PIXELS": link.pixels,
        "TILES": tiles,
        "BP": rows,
        "BN": columns,
        "BB": TOGETHER,
    }
