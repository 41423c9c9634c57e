"""The kernels of a step, each with what it reads and writes."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..trainer import EXPLODED
from .chain import NORMS, SCALES
from .layout import ALIGNED
from .stack import Kind, Stack
from .tiles import DEPTH, backward_parts, backward_tile, forward_parts, forward_tile, weight_tile

PRODUCTS = {"bf16": "ieee", "tf32": "tf32", "fp32": "ieee"}


def patches(stack: Stack, size: int) -> None:
    """What the first convolution sees."""
    from ._patches import patches_kernel

    link, data, layout = stack.chain.links[0], stack.terms.data, stack.layout
    augment, tile = data.augment, 64
    tiles = -(-link.pixels // tile)
    patches_kernel[(size * tiles, stack.models)](
        *(data.train.images, data.train.targets, stack.order, stack.place, stack.count, stack.key, stack.draws),
        *(data.mean, data.std, stack.active, stack.patches, stack.targets, len(data.train)),
        LIMIT=stack.terms.batch,
        C=link.inputs,
        H=link.height,
        W=link.width,
        OH=link.out_height,
        OW=link.out_width,
        KH=link.kernel[0],
        KW=link.kernel[1],
        STRIDE=link.stride,
        PAD=link.padding,
        K=layout.patch,
        SHIFT=augment.shift,
        HFLIP=augment.hflip,
        VFLIP=augment.vflip,
        TILES=tiles,
        BP=tile,
    )


def begin(stack: Stack, kind: Kind, size: int) -> None:
    """Draws and moments of the models of a kind."""
    from ._begin import begin_kernel

    layout, rows, block = kind.layout, kind.layout.rows, 128
    tables, analytic = -(-layout.pitch // block), kind.chain.norm == "analytic"
    begin_kernel[(size * tables + analytic * tables, kind.models)](
        *(stack.values, rows.s_at, rows.b_at, rows.u_at, stack.sigmas, layout.hashes, stack.active),
        *(stack.noise_key, stack.noise_step, stack.moments, stack.factor, stack.summand, stack.first, stack.second),
        *(stack.parameters, kind.first),
        ROWS=layout.pitch,
        TABLE=stack.table,
        TABLES=tables,
        MOMENTS=analytic,
        SCALE=SCALES[kind.chain.scale],
        SLOPE=stack.chain.slope,
        BATCH=size,
        LIMIT=stack.terms.batch,
        BT=block,
    )


def prepare(stack: Stack, kind: Kind) -> None:
    """Effective weights of the models of a kind."""
    from ._prepare import prepare_kernel

    layout, rows = kind.layout, kind.layout.rows
    prepare_kernel[(layout.channels, kind.models)](
        *(stack.values, stack.moments, stack.constants, stack.active, stack.effective, stack.statistics, stack.inner),
        *(rows.w_at, rows.b_at, rows.length, rows.inputs, rows.moments_at, rows.effective_at),
        *(stack.parameters, layout.weights, kind.first),
        ROWS=layout.pitch,
        TABLE=stack.table,
        NORM=NORMS[kind.chain.norm],
        SCALE=SCALES[kind.chain.scale],
        BLOCK=power(layout.longest),
        num_warps=_warps(layout.longest),
    )


def sizes(stack: Stack, i: int, size: int) -> dict[str, Any]:
    """Of one convolution; the first is one of 1x1 over patches."""
    link = stack.layout.links[i]
    return {
        "ROWS": stack.layout.pitch,
        "BATCH": size,
        "LIMIT": stack.terms.batch,
        **{"C": link.inputs, "H": link.height, "W": link.width},
        **{"OUT": link.outputs, "OH": link.out_height, "OW": link.out_width},
        **{"KH": link.kernel[0], "KW": link.kernel[1], "STRIDE": link.stride, "PAD": link.padding},
        "PRECISION": PRODUCTS[stack.terms.precision],
    }


def forward(stack: Stack, i: int, size: int) -> None:
    """Activation of a layer; if the batch comes first, its response and the sums of that."""
    from ._forward import forward_kernel

    link, layout, batches = stack.layout.links[i], stack.layout, stack.chain.norm == "batch"
    tile = forward_tile(link, stack.terms.batch, _abreast(stack) if batches else stack.models)
    grid = (-(-size * link.pixels // tile.rows), -(-link.outputs // (tile.columns + tile.more)), stack.models)
    forward_kernel[grid](
        *(_input(stack, i), stack.effective, stack.inner, stack.factor, stack.summand, stack.active),
        *(stack.responses[i] if batches else stack.outputs[i], stack.forward_sums[i] if batches else stack.losses),
        *(layout.weights, layout.weight_first[i], layout.row_first[i]),
        **sizes(stack, i, size),
        FRAME=0 if batches else stack.frame(i),
        SLOPE=stack.chain.slope,
        ACTIVATE=not batches,
        PARTS=forward_parts(link) if batches else 0,
        **{"BM": tile.rows, "BN": tile.columns, "BN2": tile.more, "BK": tile.depth},
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _abreast(stack: Stack) -> int:
    """Models on which the choice of a tile may look where it makes sums: in bf16 alone all tiles add up alike."""
    return stack.models if stack.terms.precision == "bf16" else 1


def _input(stack: Stack, i: int) -> Tensor:
    return stack.outputs[i - 1] if i else stack.patches


def head(stack: Stack, size: int) -> None:
    """Last layer, loss, and back to the layer before, with the gradients of its scale and shift."""
    from ._head import head_kernel

    link, layout = stack.chain.links[-1], stack.layout
    head_kernel[(size, stack.models)](
        *(stack.outputs[-1], stack.effective, stack.inner, stack.factor, stack.summand, stack.targets, stack.active),
        *(stack.pooled, stack.for_factor, stack.for_summand, stack.losses, stack.gradients[-1]),
        *(layout.weights, layout.weight_first[-1], layout.row_first[-1], layout.row_first[-2]),
        ROWS=layout.pitch,
        BATCH=size,
        LIMIT=stack.terms.batch,
        C=link.inputs,
        PIXELS=link.pixels,
        OUT=link.outputs,
        SLOPE=stack.chain.slope,
        BP=min(16, power(link.pixels)),
        BC=power(link.inputs),
        BO=power(link.outputs),
    )


def last(stack: Stack, size: int) -> None:
    """Gradient of the last layer's effective weight."""
    from ._head import last_kernel

    link, layout = stack.chain.links[-1], stack.layout
    last_kernel[(link.outputs, stack.models)](
        *(stack.pooled, stack.factor, stack.for_summand, stack.active, stack.parts),
        *(layout.parts_first[-1], layout.row_first[-1]),
        ROWS=layout.pitch,
        BATCH=size,
        LIMIT=stack.terms.batch,
        MODEL=layout.parts,
        C=link.inputs,
        BN=32,
        BC=power(link.inputs),
    )


def backward(stack: Stack, i: int, size: int) -> None:
    """Gradient of the response before a layer, and the sums for its scale and shift."""
    from ._backward import backward_kernel

    link, layout = stack.layout.links[i], stack.layout
    tile = backward_tile(link, stack.terms.batch, _abreast(stack))
    stride = link.stride
    pixels = size * -(-link.height // stride) * -(-link.width // stride)
    grid = (-(-pixels // tile.rows) * stride**2, -(-link.inputs // (tile.columns + tile.more)), stack.models)
    backward_kernel[grid](
        *(
            stack.gradients[i],
            stack.effective,
            stack.factor,
            stack.outputs[i - 1],
            stack.active,
            stack.gradients[i - 1],
            stack.backward_sums[i - 1],
        ),
        *(layout.weights, layout.weight_first[i], layout.row_first[i - 1]),
        **sizes(stack, i, size),
        SLOPE=stack.chain.slope,
        PARTS=backward_parts(link),
        **{"BM": tile.rows, "BN": tile.columns, "BN2": tile.more, "BK": tile.depth},
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def weights(stack: Stack, i: int, size: int) -> None:
    """Gradient of a layer's effective weight, in parts."""
    from ._weights import weight_kernel

    link, layout = stack.layout.links[i], stack.layout
    tile = weight_tile(link, stack.terms.batch, _abreast(stack))
    grid = (-(-link.length // tile.rows) * -(-link.outputs // (tile.columns + tile.more)), tile.split, stack.models)
    weight_kernel[grid](
        *(stack.gradients[i], _input(stack, i), stack.active, stack.parts, layout.parts_first[i]),
        **sizes(stack, i, size),
        MODEL=layout.parts,
        SPLIT=tile.split,
        UNIT=DEPTH,
        **{"BM": tile.rows, "BN": tile.columns, "BN2": tile.more, "BK": tile.depth},
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def add_parts(stack: Stack, i: int) -> None:
    """The parts of that gradient, added up."""
    from ._weights import sum_kernel

    link, layout, block = stack.layout.links[i], stack.layout, 512
    split, size = weight_tile(link, stack.terms.batch).split, link.outputs * link.length
    if split > 1:
        sum_kernel[(-(-size // block), stack.models)](
            *(stack.parts, stack.active, layout.parts_first[i], size),
            MODEL=layout.parts,
            SPLIT=split,
            ALIGNED=ALIGNED,
            BLOCK=block,
        )


def scales(stack: Stack, i: int, size: int) -> None:
    """Gradients of the scale and shift of each sample, of a layer."""
    from ._sums import scale_kernel

    link, behind, layout = stack.layout.links[i], stack.layout.links[i + 1], stack.layout
    parts, columns, pixels = backward_parts(behind), 32, min(256, power(link.pixels))
    if parts:
        fold(stack, i, size, stack.backward_sums[i], (stack.for_summand, stack.for_factor), parts, unscale=True)
        return
    scale_kernel[(size, -(-link.outputs // columns), stack.models)](
        *(stack.gradients[i], stack.outputs[i], stack.factor, stack.summand, stack.inner, stack.active),
        *(stack.for_summand, stack.for_factor, layout.row_first[i]),
        ROWS=layout.pitch,
        LIMIT=stack.terms.batch,
        C=link.outputs,
        H=link.out_height,
        W=link.out_width,
        PAD=stack.frame(i),
        SLOPE=stack.chain.slope,
        BP=pixels,
        BN=columns,
        num_warps=8 if pixels == 256 else 4,
    )


def fold(
    stack: Stack, i: int, size: int, sums: Tensor, results: tuple[Tensor, Tensor], parts: int, unscale: bool = False
) -> None:
    """The sums that a convolution left, of each sample."""
    from ._sums import fold_kernel

    outputs, layout, columns = stack.layout.links[i].outputs, stack.layout, 32
    fold_kernel[(size, -(-outputs // columns), stack.models)](
        *(sums, stack.factor, stack.summand, stack.inner, stack.active, *results, layout.row_first[i]),
        ROWS=layout.pitch,
        LIMIT=stack.terms.batch,
        C=outputs,
        PARTS=parts,
        UNSCALE=unscale,
        BP=power(parts),
        BN=columns,
        num_warps=1,
    )


def totals(stack: Stack, kind: Kind, size: int) -> None:
    """Their sums over the samples, of all layers of the models of a kind."""
    from ._finish import totals_kernel

    layout, rows, block = kind.layout, kind.layout.rows, 32
    totals_kernel[(-(-layout.pitch // block), kind.models)](
        *(stack.values, stack.statistics, stack.factor, stack.first, stack.second, stack.for_factor, stack.for_summand),
        *(stack.active, stack.sums, rows.s_at, rows.b_at, stack.parameters, kind.first),
        ROWS=layout.pitch,
        BATCH=size,
        LIMIT=stack.terms.batch,
        SCALE=SCALES[kind.chain.scale],
        BN=32,
        BR=block,
    )


def gradients(stack: Stack, kind: Kind) -> None:
    """Gradients of all parameters of the models of a kind."""
    from ._finish import gradient_kernel, through_kernel

    layout, rows, behind, chain = kind.layout, kind.layout.rows, kind.layout.behind, kind.chain
    analytic = chain.norm == "analytic"
    gradient_kernel[(layout.channels, kind.models)](
        *(stack.values, stack.gradient, stack.moments, stack.statistics, stack.sums, stack.parts),
        *(stack.kl_factors, stack.place, stack.active, stack.through, stack.squares, stack.divergences),
        *(rows.w_at, rows.s_at, rows.b_at, rows.u_at, rows.length, rows.inputs),
        *(rows.moments_at, rows.parts_at),
        *(stack.parameters, stack.terms.steps, len(stack.terms.data.train), chain.prior, kind.first),
        ROWS=layout.pitch,
        TABLE=stack.table,
        MODEL=layout.parts,
        LAST=layout.row_first[-1],
        NORM=NORMS[chain.norm],
        SCALE=SCALES[chain.scale],
        FINAL=not analytic,
        BLOCK=power(layout.longest),
        num_warps=_warps(layout.longest),
    )
    if analytic:
        block = 16
        widest = max(link.outputs for link in chain.links[:-1])
        through_kernel[(-(-widest // block), len(chain.links) - 1, kind.models)](
            *(stack.values, stack.gradient, stack.through, stack.active, stack.squares),
            *(rows.s_at, rows.b_at, behind.w_first, behind.rows_before, behind.outputs, behind.taps),
            *(behind.inputs, stack.parameters, kind.first),
            ROWS=layout.pitch,
            TABLE=stack.table,
            INSIDE=chain.scale == "bayes",
            SLOPE=chain.slope,
            BLOCK=256,
            BC=block,
            num_warps=8,
        )


def judge(stack: Stack, kind: Kind, size: int) -> None:
    """Whether the step is taken, by each model of a kind."""
    from ._finish import judge_kernel

    terms, layout = stack.terms, kind.layout
    judge_kernel[(kind.models,)](
        *(stack.losses, stack.divergences, stack.squares, stack.kl_factors, stack.rates, stack.active),
        *(stack.place, stack.count, stack.noise_step, stack.failed, stack.totals, stack.last),
        *(stack.good, stack.clip_scale, stack.rate, terms.steps, len(terms.data.train)),
        *(math.inf if kind.clip is None else kind.clip, kind.first),
        ROWS=layout.pitch,
        TABLE=stack.table,
        BATCH=size,
        LIMIT=terms.batch,
        SCALE=SCALES[kind.chain.scale],
        EXPLODED=EXPLODED,
        BLOCK=1024,
    )


def update(stack: Stack, kind: Kind) -> None:
    """The step of the optimizer, of the models of a kind."""
    from ._update import update_kernel

    rows = kind.rows
    update_kernel[(len(rows.start), kind.models)](
        *(stack.values, stack.momentum, stack.gradient, stack.rate, stack.good, stack.clip_scale),
        *(rows.start, rows.length, rows.factor, rows.low, rows.high, rows.project),
        *(kind.momentum, stack.parameters, kind.first),
        BLOCK=power(rows.longest),
        num_warps=8,
    )


def _warps(length: int) -> int:
    """Of a program that holds a whole weight vector."""
    return min(16, max(4, power(length) // 512))


def power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
