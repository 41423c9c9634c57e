"""The gradients of the scale and shift of each sample."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl


@triton.jit
def scale_kernel(
    grad,
    response,
    factor,
    active,
    for_factor,
    for_summand,
    row_at,
    ROWS: tl.constexpr,
    LIMIT: tl.constexpr,
    OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
):
    """Programs (sample, tile of channels, model): gradients of ``A`` and ``B``, sums over the pixels."""
    n, model = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(active + model) == 0:
        return
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    grad += (model * LIMIT + n) * (PIXELS * OUT)
    response += (model * LIMIT + n) * (PIXELS * OUT)
    products = tl.zeros((BP, BN), dtype=tl.float32)
    sums = tl.zeros((BP, BN), dtype=tl.float32)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        mask = (p < PIXELS)[:, None] & (c < OUT)[None, :]
        place = p[:, None] * OUT + c[None, :]
        g = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        products += g * tl.load(response + place, mask=mask, other=0.0).to(tl.float32)
        sums += g
    at = (model * LIMIT + n) * ROWS + row_at + c
    scale = tl.load(factor + at, mask=c < OUT, other=1.0)
    inverse = tl.where(scale == 0, 0.0, 1.0 / scale)  # what comes in was multiplied by the scale
    tl.store(for_factor + at, tl.sum(products, 0) * inverse, mask=c < OUT)
    tl.store(for_summand + at, tl.sum(sums, 0) * inverse, mask=c < OUT)
