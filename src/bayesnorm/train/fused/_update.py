"""The kernel of ``rows.update_``; imported where there is a GPU."""

# Triton reads annotations as its own types, so that there are none for mypy.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first_model"])  # type: ignore[untyped-decorator]
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
    parameters,
    first_model,
    BLOCK: tl.constexpr,
):
    """Programs (row, model), each with its own part of the tensors; ``BLOCK`` holds every row that is projected."""
    row, model = tl.program_id(0), (first_model + tl.program_id(1)).to(tl.int64)
    values += model * parameters
    momentum += model * parameters
    gradient += model * parameters
    start, length = tl.load(starts + row), tl.load(lengths + row)
    low, high, project = tl.load(lows + row), tl.load(highs + row), tl.load(projects + row)
    taken, factor = tl.load(good + model), tl.load(scale + model)
    if taken == 0:
        return
    step = tl.load(rate + model) * tl.load(factors + row)
    for offset in range(0, length, BLOCK):
        place = offset + tl.arange(0, BLOCK)
        inside = place < length
        g = tl.load(gradient + start + place, mask=inside, other=0.0) * factor
        m = tl.load(momentum + start + place, mask=inside, other=0.0)
        p = tl.load(values + start + place, mask=inside, other=0.0)
        new = mu * m + g
        p = tl.minimum(tl.maximum(p - step * (g + mu * new), low), high)
        if project == 1:
            total = tl.sum(tl.where(inside, p * p, 0.0))
            p *= tl.where(total > 0, 1.0 / tl.sqrt(total), 1.0)
        tl.store(momentum + start + place, new, mask=inside)
        tl.store(values + start + place, p, mask=inside)
