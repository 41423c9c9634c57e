"""Mean and variance of maxima of independent normal variables; conventions as in ``gaussian.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from .gaussian import Pair, broadcast, in_double, positive_part


@in_double
def maximum(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor) -> Pair:
    """Maximum of two independent normals: with ``t^2 = v1 + v2``, ``a = (m1 - m2) / t``,

    ``m' = m1 Phi(a) + m2 Phi(-a) + t phi(a)`` and ``v' = v1 Phi(a) + v2 Phi(-a) - t^2 h(a) h(-a)``.

    >>> [round(float(t), 5) for t in maximum(*map(torch.tensor, (0., 1., 0., 1.)))]
    [0.56419, 0.68169]
    """
    total = var + other_var
    excess, cdf, both = positive_part(mean - other_mean, total)
    return other_mean + excess, var * cdf + other_var * (1 - cdf) - total * both


def maximum_of(mean: Tensor, var: Tensor, n: int) -> Pair:
    """Maximum of ``n`` independent copies, by a balanced tree of pairs; an odd one out passes up.

    Each level is taken for normal: at n = 4, 9, 16, 64 the mean is low by 0, 1, 3.4, 13 % of the input's std and the
    variance by 6, 15, 27, 51 %.
    """
    same, odd = (mean, var), None
    while n > 1:
        if n % 2:
            odd = same if odd is None else maximum(*same, *odd)
        same, n = maximum(*same, *same), n // 2
    return same if odd is None else maximum(*same, *odd)


def maximum_over(mean: Tensor, var: Tensor, dim: int) -> Pair:
    """Maximum over an axis (removed) of independent normals, by the same tree."""
    mean, var = (t.movedim(dim, 0) for t in broadcast(mean, var))
    while len(mean) > 1:
        even = len(mean) // 2 * 2
        first, second, last = slice(0, even, 2), slice(1, even, 2), slice(even, None)
        pair = maximum(mean[first], var[first], mean[second], var[second])
        mean, var = torch.cat((pair[0], mean[last])), torch.cat((pair[1], var[last]))
    return mean[0], var[0]
