"""The kernel between parameters and convolutions: the normalized weights."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._begin import BAYES

NONE, ANALYTIC, BATCHES = tl.constexpr(0), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def remainder(k, channels):
    """``k % channels`` of numbers below 2^22, by floating point: the division of integers is slow."""
    return k - ((k.to(tl.float32) + 0.5) / channels.to(tl.float32)).to(tl.int32) * channels


@triton.jit(do_not_specialize=["first_model"])
def prepare_kernel(
    values,
    moments,
    constants,
    active,
    effective,
    statistics,
    inner,
    w_at,
    b_at,
    length,
    inputs,
    moments_at,
    effective_at,
    parameters,
    weights,
    first_model,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    NORM: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Programs (output channel of any layer, model): effective weight, and what is added to the response."""
    row, model = tl.program_id(0), (first_model + tl.program_id(1)).to(tl.int64)
    # All that hangs on the row alone is asked for at once: waiting for memory is most of the time here.
    size, channels, w_place = tl.load(length + row), tl.load(inputs + row), tl.load(w_at + row)
    b_place, table, target = tl.load(b_at + row), tl.load(moments_at + row), tl.load(effective_at + row)
    center = tl.load(constants + model * (2 * ROWS) + row)
    spread = tl.load(constants + model * (2 * ROWS) + ROWS + row)
    if tl.load(active + model) == 0:
        return
    values += model * parameters
    k = tl.arange(0, BLOCK)
    w = tl.load(values + w_place + k, mask=k < size, other=0.0)
    b = 0.0
    if SCALE == BAYES:
        b = tl.load(values + b_place)
    gain, offset = 1.0, 0.0
    if NORM != NONE:
        mu = 0.0
        if NORM == ANALYTIC:
            moments += model * (2 * TABLE) + table + remainder(k, channels)
            mu = tl.sum(w * tl.load(moments))
            square = tl.sum(w * w * tl.load(moments + TABLE))
        else:
            square = tl.sum(w * w)
        sigma = tl.sqrt(tl.where(square > 0, square, 1.0))
        if NORM == BATCHES:  # the response of a unit vector: the batch does the rest
            gain = spread / sigma
        else:
            gain = 1.0 / (spread * sigma)
            offset = -(mu + center * sigma) * gain
        statistic = statistics + (model * ROWS + row) * 4
        tl.store(statistic, mu)
        tl.store(statistic + 1, sigma)
        tl.store(statistic + 2, gain)
        tl.store(statistic + 3, offset)
    tl.store(inner + model * ROWS + row, offset + b)
    effective += model * weights + target
    tl.store(effective + k, (w * gain).to(effective.dtype.element_ty), mask=k < size)
