"""The kernel that begins a step: moments behind every activation, and the draws."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._draw import normal, row_hash

PLAIN, POINT, NOISE, BAYES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def rho(u):
    """``e^u`` below 0, ``1 + u`` above: the std of a posterior."""
    return tl.where(u < 0, tl.exp(tl.minimum(u, 0.0)), 1.0 + u)


@triton.jit
def kink(mean, std):
    """``a = mean / std`` with ``Phi(a)``, ``phi(a)`` and ``h(a)``: all that the moments of a leaky ReLU need."""
    a = tl.minimum(tl.maximum(mean / tl.maximum(std, 1e-30), -40.0), 40.0)
    cdf = 0.5 * (1.0 + tl.erf(a * 0.7071067811865476))
    pdf = tl.exp(-0.5 * a * a) * 0.3989422804014327
    return a, cdf, pdf, a * cdf + pdf


@triton.jit
def shrinkage(a, cdf, h, slope: tl.constexpr):
    """Variance behind a leaky ReLU, in units of that before it."""
    return slope * slope + (1.0 - slope * slope) * cdf - (1.0 - slope) * (1.0 - slope) * h * (h - a)


@triton.jit
def draws_of(
    values,
    s_at,
    b_at,
    u_at,
    sigmas,
    hashes,
    key,
    step,
    n,
    j,
    factor,
    summand,
    first,
    second,
    ROWS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """``A`` and ``B`` of some channels for one sample, and the draws behind them."""
    own = j < ROWS
    b_place = tl.load(b_at + j, mask=own, other=-1)
    b = tl.load(values + b_place, mask=b_place >= 0, other=0.0)
    if SCALE == PLAIN:
        tl.store(factor + j, tl.zeros_like(b) + 1.0, mask=own)
        tl.store(summand + j, b, mask=own)
    else:
        s = tl.load(values + tl.load(s_at + j, mask=own, other=0), mask=own, other=1.0)
        if SCALE == POINT:
            tl.store(factor + j, s, mask=own)
            tl.store(summand + j, b, mask=own)
        else:
            row = row_hash(key, step, n)
            xi = normal(row, tl.load(hashes + j, mask=own, other=0))
            if SCALE == BAYES:
                u = tl.load(values + tl.load(u_at + j, mask=own, other=0), mask=own, other=0.0)
                tl.store(factor + j, s + xi * rho(u), mask=own)
                tl.store(summand + j, tl.zeros_like(s), mask=own)
                tl.store(first + j, xi, mask=own)
            else:
                u = 1.0 + tl.load(sigmas + j, mask=own, other=0.0) * xi
                v = normal(row, tl.load(hashes + ROWS + j, mask=own, other=0))
                v *= tl.load(sigmas + ROWS + j, mask=own, other=0.0) * u
                tl.store(factor + j, u * s, mask=own)
                tl.store(summand + j, v * s + b, mask=own)
                tl.store(first + j, u, mask=own)
                tl.store(second + j, v, mask=own)


@triton.jit
def moments_of(
    values,
    s_at,
    b_at,
    moments,
    j,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    SCALE: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """Mean and variance (with the eps of the norm) of some channels behind their activation."""
    own = j < ROWS
    s = tl.load(values + tl.load(s_at + j, mask=own, other=0), mask=own, other=1.0).to(tl.float64)
    b = tl.load(values + tl.load(b_at + j, mask=own, other=0), mask=own, other=0.0).to(tl.float64)
    if SCALE == BAYES:  # the bias is multiplied by the scale
        b = b * s
    std = tl.abs(s)
    a, cdf, pdf, h = kink(b, std)
    mean = SLOPE * b + (1.0 - SLOPE) * (b * cdf + std * pdf)
    var = std * std * shrinkage(a, cdf, h, SLOPE)
    tl.store(moments + j, mean.to(tl.float32), mask=own)
    tl.store(moments + TABLE + j, var.to(tl.float32) + 1e-5, mask=own)


@triton.jit(do_not_specialize=["first_model"])
def begin_kernel(
    values,
    s_at,
    b_at,
    u_at,
    sigmas,
    hashes,
    active,
    noise_keys,
    noise_step,
    moments,
    factor,
    summand,
    first,
    second,
    parameters,
    first_model,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    TABLES: tl.constexpr,
    MOMENTS: tl.constexpr,
    SCALE: tl.constexpr,
    SLOPE: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    BT: tl.constexpr,
):
    """Programs (some channels of a sample, model); behind those of the draws come those of the moments.

    Draws make two numbers per sample and channel, with ``u = (response + h) A + B``; ``h`` is known after ``prepare``.
    """
    model = (first_model + tl.program_id(1)).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    n, j = tl.program_id(0) // TABLES, (tl.program_id(0) % TABLES) * BT + tl.arange(0, BT)
    values += model * parameters
    if n < BATCH:
        line = (model * LIMIT + n) * ROWS
        # fmt: off
        draws_of(
            values, s_at, b_at, u_at, sigmas + model * (2 * ROWS), hashes,
            tl.load(noise_keys + model), tl.load(noise_step + model), n, j,
            factor + line, summand + line, first + line, second + line, ROWS, SCALE,
        )
        # fmt: on
    elif MOMENTS:
        moments += model * (2 * TABLE)
        moments_of(values, s_at, b_at, moments, j, ROWS, TABLE, SCALE, SLOPE)
