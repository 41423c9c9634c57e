"""The kernels of the maps, each with what it reads and writes: from the images to the loss, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .layout import ALIGNED
from .stack import Stack
from .tiles import DEPTH, backward_parts, backward_tile, forward_parts, forward_tile, power, weight_tile

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
    """Gradients of the shift and scale of each sample, of a layer."""
    found, made = (stack.for_summand, stack.for_factor), (stack.gradients[i], stack.outputs[i])
    sums(stack, i, size, backward_parts(stack.layout.links[i + 1]), stack.backward_sums[i], made, found, scaled=True)


def sums(
    stack: Stack,
    i: int,
    size: int,
    parts: int,
    left: Tensor,
    made: tuple[Tensor, Tensor],
    found: tuple[Tensor, Tensor],
    scaled: bool = False,
) -> None:
    """Sums over the pixels of each sample, of a layer: from what a convolution left, or else from its maps.

    Arguments:
        stack: where.
        i: number of the layer.
        size: of the batch.
        parts: for each sample, that the convolution left; 0: it left none.
        left: these.
        made: two maps, of which one is added up, and its product with the other.
        found: where the sums go.
        scaled: whether the maps are a gradient and an activation, behind the scale.
    """
    from ._sums import fold_kernel, maps_kernel

    link, layout, columns = stack.layout.links[i], stack.layout, 32
    grid, tables = (size, -(-link.outputs // columns), stack.models), (stack.factor, stack.summand, stack.inner)
    common: dict[str, Any] = {"ROWS": layout.pitch, "LIMIT": stack.terms.batch, "C": link.outputs, "SCALED": scaled}
    if parts:
        fold_kernel[grid](
            *(left, *tables, stack.active, *found, layout.row_first[i]),
            **common,
            PARTS=parts,
            BP=power(parts),
            BN=columns,
            num_warps=1,
        )
        return
    pixels = min(256, power(link.pixels))
    maps_kernel[grid](
        *(*made, *tables, stack.active, *found, layout.row_first[i]),
        **common,
        H=link.out_height,
        W=link.out_width,
        PAD=stack.frame(i) if scaled else 0,
        SLOPE=stack.chain.slope,
        BP=pixels,
        BN=columns,
        num_warps=8 if pixels == 256 else 4,
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


def _abreast(stack: Stack) -> int:
    """Models on which the choice of a tile may look where it makes sums: in bf16 alone all tiles add up alike."""
    return stack.models if stack.terms.precision == "bf16" else 1


def _input(stack: Stack, i: int) -> Tensor:
    return stack.outputs[i - 1] if i else stack.patches
