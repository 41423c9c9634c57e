"""The kernel of ``rows.update_``; imported where there is a GPU."""

# Triton reads annotations as its own types, so that there are none for mypy.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def update_kernel(
    values,
    momentum,
    gradient,
    rate,
    good,
    scale,
    starts,
    lengths,
    factors,
    lows,
    highs,
    projects,
    mu,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One program per row: it reads and writes its own part of the tensors alone."""
    row = tl.program_id(0)
    start, length = tl.load(starts + row), tl.load(lengths + row)
    low, high, project = tl.load(lows + row), tl.load(highs + row), tl.load(projects + row)
    taken, factor = tl.load(good), tl.load(scale)
    step = tl.load(rate) * tl.load(factors + row)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for offset in range(0, length, BLOCK):
        place = offset + tl.arange(0, BLOCK)
        inside = place < length
        g = tl.load(gradient + start + place, mask=inside, other=0.0) * factor
        m = tl.load(momentum + start + place, mask=inside, other=0.0)
        p = tl.load(values + start + place, mask=inside, other=0.0)
        new = mu * m + g
        moved = tl.minimum(tl.maximum(p - step * (g + mu * new), low), high)
        p = tl.where(taken, moved, p)
        tl.store(momentum + start + place, tl.where(taken, new, m), mask=inside)
        tl.store(values + start + place, p, mask=inside)
        squares += tl.where(inside, p * p, 0.0)
    if (project == 1) & (taken != 0):
        total = tl.sum(squares)
        inverse = tl.where(total > 0, 1.0 / tl.sqrt(total), 1.0)
        tl.debug_barrier()
        for offset in range(0, length, BLOCK):
            place = offset + tl.arange(0, BLOCK)
            inside = place < length
            p = tl.load(values + start + place, mask=inside, other=0.0)
            tl.store(values + start + place, p * inverse, mask=inside)
