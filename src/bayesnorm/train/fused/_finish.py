"""The kernels behind the convolutions: gradients of all parameters, also through the statistics, and the judgement."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ._begin import BAYES, NOISE, PLAIN, kink, rho, shrinkage
from ._prepare import ANALYTIC, NONE, remainder


@triton.jit(do_not_specialize=["first_model"])
def totals_kernel(
    values,
    statistics,
    factor,
    first,
    second,
    for_factor,
    for_summand,
    active,
    totals,
    s_at,
    b_at,
    parameters,
    first_model,
    ROWS: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
):
    """Programs (some channels of any layer, model): gradients of scale, shift, draws and offset, sums over samples."""
    row, model = tl.program_id(0) * BR + tl.arange(0, BR), (first_model + tl.program_id(1)).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    own = row < ROWS
    values += model * parameters
    offset = tl.load(statistics + (model * ROWS + row) * 4 + 3, mask=own, other=0.0)
    b_place = tl.load(b_at + row, mask=own, other=-1)
    b = tl.load(values + b_place, mask=b_place >= 0, other=0.0)
    s = tl.zeros_like(b) + 1.0
    if SCALE != PLAIN:
        s = tl.load(values + tl.load(s_at + row, mask=own, other=0), mask=own, other=0.0)
    for_s = tl.zeros((BR,), dtype=tl.float32)
    for_b = tl.zeros((BR,), dtype=tl.float32)
    for_u = tl.zeros((BR,), dtype=tl.float32)
    for_offset = tl.zeros((BR,), dtype=tl.float32)
    line = model * (LIMIT * ROWS)
    for start in range(0, BATCH, BN):
        n = start + tl.arange(0, BN)
        mask = (n < BATCH)[:, None] & own[None, :]
        at = n[:, None] * ROWS + row[None, :]
        for_a = tl.load(for_factor + line + at, mask=mask, other=0.0)
        for_sum = tl.load(for_summand + line + at, mask=mask, other=0.0)
        if SCALE == BAYES:
            scaled = tl.sum(tl.load(factor + line + at, mask=mask, other=0.0) * for_sum, 0)
            drawn = for_a + (offset + b)[None, :] * for_sum
            for_s += tl.sum(drawn, 0)
            for_u += tl.sum(drawn * tl.load(first + line + at, mask=mask, other=0.0), 0)
            for_b += scaled
            for_offset += scaled
        elif SCALE == NOISE:
            u = tl.load(first + line + at, mask=mask, other=0.0)
            v = tl.load(second + line + at, mask=mask, other=0.0)
            for_s += tl.sum(u * (for_a + offset[None, :] * for_sum) + v * for_sum, 0)
            for_b += tl.sum(for_sum, 0)
            for_offset += tl.sum(u * for_sum, 0) * s
        else:
            whole = tl.sum(for_sum, 0)
            for_s += tl.sum(for_a, 0) + offset * whole
            for_b += whole
            for_offset += whole * s
    totals += (model * ROWS + row) * 4
    tl.store(totals, for_s, mask=own)
    tl.store(totals + 1, for_b, mask=own)
    tl.store(totals + 2, for_u, mask=own)
    tl.store(totals + 3, for_offset, mask=own)


@triton.jit(do_not_specialize=["first_model"])
def gradient_kernel(
    values,
    gradient,
    moments,
    statistics,
    totals,
    parts,
    kl_factors,
    place,
    active,
    through,
    squares,
    divergences,
    w_at,
    s_at,
    b_at,
    u_at,
    length,
    inputs,
    moments_at,
    parts_at,
    parameters,
    steps,
    samples,
    prior,
    first_model,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    MODEL: tl.constexpr,
    LAST: tl.constexpr,
    NORM: tl.constexpr,
    SCALE: tl.constexpr,
    FINAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Programs (output channel of any layer, model).

    Gradient of its weights, scale, shift and variance; ``through``: those of its statistics, for the layers before.
    """
    row, model = tl.program_id(0), (first_model + tl.program_id(1)).to(tl.int64)
    # As in ``prepare``: first ask for everything that hangs on the row alone.
    size, channels, w_place = tl.load(length + row), tl.load(inputs + row), tl.load(w_at + row)
    b_place, s_place, u_place = tl.load(b_at + row), tl.load(s_at + row), tl.load(u_at + row)
    part, table = tl.load(parts_at + row), tl.load(moments_at + row)
    at = totals + (model * ROWS + row) * 4
    g_s, g_b, g_u, g_offset = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    at = statistics + (model * ROWS + row) * 4
    mu, sigma, gain = tl.load(at), tl.load(at + 1), tl.load(at + 2)
    if tl.load(active + model) == 0:
        return
    values += model * parameters
    gradient += model * parameters
    k = tl.arange(0, BLOCK)
    parts += model * MODEL + part
    g = tl.load(parts + k, mask=k < size, other=0.0)
    w = tl.load(values + w_place + k, mask=k < size, other=0.0)
    square = tl.where(b_place >= 0, g_b * g_b, 0.0)
    square_u = 0.0
    if SCALE == BAYES:
        s, u = tl.load(values + s_place), tl.load(values + u_place)
        std = rho(u)
        slope = tl.where(u < 0, std, 1.0)
        log_std = tl.where(u < 0, u, tl.log(tl.maximum(std, 1.0)))
        share = tl.load(kl_factors + model * steps + tl.load(place + model)) / samples
        g_s += share * (s - 1.0) / (prior * prior)
        g_u = slope * g_u + share * (std * slope / (prior * prior) - slope / std)
        kl = tl.log(prior) - log_std + (std * std + (s - 1.0) * (s - 1.0)) / (2 * prior * prior) - 0.5
        tl.store(divergences + model * ROWS + row, kl)
        tl.store(gradient + u_place, g_u)
        square_u = g_u * g_u
    if SCALE != PLAIN:
        tl.store(gradient + s_place, g_s)
        square += g_s * g_s
    tl.store(gradient + b_place, g_b, mask=b_place >= 0)
    if (not FINAL) & (row < LAST):  # the layer behind adds to scale and shift
        square = 0.0
    if NORM == NONE:
        gain = 1.0
    g_mu = -g_offset * gain
    g_sigma = 0.0
    if NORM != NONE:
        g_sigma = (g_offset * mu - tl.sum(g * w)) * gain / (sigma * sigma)  # of sigma, over sigma
    g *= gain
    if NORM == ANALYTIC:
        tl.store(through + (model * ROWS + row) * 2, g_mu)
        tl.store(through + (model * ROWS + row) * 2 + 1, 0.5 * g_sigma)
        moments += model * (2 * TABLE) + table + remainder(k, channels)
        g += g_mu * tl.load(moments) + g_sigma * w * tl.load(moments + TABLE)
    elif NORM != NONE:
        g += g_sigma * w
    g = tl.where(k < size, g, 0.0)
    tl.store(gradient + w_place + k, g, mask=k < size)
    tl.store(squares + model * (ROWS + TABLE) + row, tl.sum(g * g) + square + square_u)


@triton.jit(do_not_specialize=["first_model"])
def through_kernel(
    values,
    gradient,
    through,
    active,
    squares,
    s_at,
    b_at,
    w_first,
    row_first,
    outputs,
    taps,
    inputs,
    parameters,
    first_model,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    INSIDE: tl.constexpr,
    SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
    BC: tl.constexpr,
):
    """Gradients through the propagated moments: programs (some channels of a layer's output, layer, model)."""
    layer, model = tl.program_id(1), (first_model + tl.program_id(2)).to(tl.int64)
    channels, before = tl.load(inputs + layer), tl.load(row_first + layer)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    if (tl.load(active + model) == 0) | (tl.program_id(0) * BC >= channels):
        return
    values += model * parameters
    gradient += model * parameters
    weight, t = values + tl.load(w_first + layer), tl.load(taps + layer)
    rows = tl.load(outputs + layer) * t
    behind = through + (model * ROWS + before + channels) * 2
    for_mean = tl.zeros((BLOCK, BC), dtype=tl.float32)
    for_var = tl.zeros((BLOCK, BC), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        i = start + tl.arange(0, BLOCK)
        w = tl.load(
            weight + i[:, None] * channels + c[None, :], mask=(i < rows)[:, None] & (c < channels)[None, :], other=0.0
        )
        g_mu = tl.load(behind + (i // t) * 2, mask=i < rows, other=0.0)
        g_var = tl.load(behind + (i // t) * 2 + 1, mask=i < rows, other=0.0)
        for_mean += w * g_mu[:, None]
        for_var += w * w * g_var[:, None]
    g_mean, g_var = tl.sum(for_mean, 0).to(tl.float64), tl.sum(for_var, 0).to(tl.float64)
    keep = c < channels
    s_place = tl.load(s_at + before + c, mask=keep, other=0)
    b_place = tl.load(b_at + before + c, mask=keep, other=0)
    s = tl.load(values + s_place, mask=keep, other=1.0).to(tl.float64)
    b = tl.load(values + b_place, mask=keep, other=0.0).to(tl.float64)
    mean = b
    if INSIDE:
        mean = b * s
    std = tl.abs(s)
    a, cdf, pdf, h = kink(mean, std)
    factor = shrinkage(a, cdf, h, SLOPE)
    bend = (1.0 - SLOPE * SLOPE) * pdf - (1.0 - SLOPE) * (1.0 - SLOPE) * (cdf * (h - a) + h * (cdf - 1.0))
    for_shift = g_mean * (SLOPE + (1.0 - SLOPE) * cdf) + g_var * std * bend
    for_std = g_mean * (1.0 - SLOPE) * pdf + g_var * std * (2.0 * factor - a * bend)
    for_s = for_std * tl.where(s < 0, -1.0, 1.0)
    if INSIDE:
        for_s += for_shift * b
        for_shift = for_shift * s
    g_s = tl.load(gradient + s_place, mask=keep, other=0.0) + for_s.to(tl.float32)
    g_b = tl.load(gradient + b_place, mask=keep, other=0.0) + for_shift.to(tl.float32)
    tl.store(gradient + s_place, g_s, mask=keep)
    tl.store(gradient + b_place, g_b, mask=keep)
    tl.store(squares + model * (ROWS + TABLE) + ROWS + before + c, g_s * g_s + g_b * g_b, mask=keep)


@triton.jit(do_not_specialize=["first_model"])
def judge_kernel(
    losses,
    divergences,
    squares,
    kl_factors,
    rates,
    active,
    place,
    step,
    noise_step,
    failed,
    totals,
    last,
    good,
    clip_scale,
    rate,
    steps,
    samples,
    clip,
    first_model,
    ROWS: tl.constexpr,
    TABLE: tl.constexpr,
    BATCH: tl.constexpr,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    EXPLODED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per model: the loss, whether the step is taken, the sums of the epoch, and on to the next step."""
    model = (first_model + tl.program_id(0)).to(tl.int64)
    if tl.load(active + model) == 0:
        tl.store(good + model, 0)
        return
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, BATCH, BLOCK):
        total += tl.load(losses + model * LIMIT + start + i, mask=start + i < BATCH, other=0.0)
    nll = tl.sum(total) / BATCH
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, ROWS + TABLE, BLOCK):
        inside = start + i < ROWS + TABLE
        total += tl.load(squares + model * (ROWS + TABLE) + start + i, mask=inside, other=0.0)
    norm = tl.sqrt(tl.sum(total))
    at = tl.load(place + model)
    kl = 0.0
    if SCALE == BAYES:
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in range(0, ROWS, BLOCK):
            total += tl.load(divergences + model * ROWS + start + i, mask=start + i < ROWS, other=0.0)
        kl = tl.sum(total)
    loss = nll + tl.load(kl_factors + model * steps + at) * kl / samples
    before = tl.load(failed + model)
    number = tl.load(step + model)
    finite = (tl.abs(loss + norm) < float("inf")) & (nll <= EXPLODED)
    taken = finite & (before < 0)
    tl.store(good + model, taken.to(tl.int32))
    tl.store(clip_scale + model, tl.minimum(clip / (norm + 1e-6), 1.0))
    tl.store(rate + model, tl.load(rates + model * steps + at))
    weight = tl.where(taken, BATCH, 0).to(tl.float64)
    tl.store(totals + model * 4, tl.load(totals + model * 4) + weight)
    if taken:
        tl.store(totals + model * 4 + 1, tl.load(totals + model * 4 + 1) + weight * loss)
        tl.store(totals + model * 4 + 2, tl.load(totals + model * 4 + 2) + weight * nll)
        tl.store(totals + model * 4 + 3, tl.load(totals + model * 4 + 3) + weight * kl)
    elif before < 0:
        tl.store(last + model * 2, loss.to(tl.float64))
        tl.store(last + model * 2 + 1, norm.to(tl.float64))
        tl.store(failed + model, number)
    tl.store(place + model, at + 1)
    tl.store(step + model, number + 1)
    if SCALE >= NOISE:
        tl.store(noise_step + model, tl.load(noise_step + model) + 1)
