"""The kernels of the parameters, each with what it reads and writes: before the maps, and behind them."""

from __future__ import annotations

import math

from ..trainer import EXPLODED
from .chain import NORMS, SCALES
from .stack import Kind, Stack
from .tiles import power


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
