"""Mean and variance of maxima and softmax of independent normal variables; conventions as in ``gaussian.py``."""

from __future__ import annotations

import math

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


@in_double
def softmax(mean: Tensor, var: Tensor, dim: int) -> Pair:
    """Softmax over an axis of n entries (coarse: a logistic latent-variable approximation).

    ``v' = v + pi^2/6``, vbar its mean, ``c_k = sqrt((v'_k + (n vbar - v'_k)/(n-1)) / (pi^2/3))``,
    ``q_k = softmax(m / c_k)_k``, ``p = q / sum q``; variance ``p_k^2 ((1 - 2 p_k) v_k + sum_j p_j^2 v_j)``.
    ``v = 0`` gives exactly ``softmax(m)``.
    """
    mean, var = (t.movedim(dim, -1) for t in broadcast(mean, var))
    n = mean.shape[-1]
    if n == 1:
        return torch.ones_like(mean).movedim(-1, dim), torch.zeros_like(var).movedim(-1, dim)
    wide = var + math.pi**2 / 6
    c = ((wide * (n - 2) + wide.sum(-1, keepdim=True)) / ((n - 1) * math.pi**2 / 3)).sqrt()
    q = torch.exp(mean / c - (mean.unsqueeze(-2) / c.unsqueeze(-1)).logsumexp(-1))
    p = q / q.sum(-1, keepdim=True)
    new_var = p * p * ((1 - 2 * p) * var + (p * p * var).sum(-1, keepdim=True))
    return p.movedim(-1, dim), new_var.clamp_min(0).movedim(-1, dim)


@in_double
def log_softmax(mean: Tensor, var: Tensor, dim: int) -> Pair:
    """Log-softmax to second order in the deviations (coarse; good for v below 1).

    With ``p = softmax(m)``: ``m' = m - logsumexp(m) - sum_j p_j (1 - p_j) v_j / 2`` and
    ``v'_k = (1 - 2 p_k) v_k + sum_j p_j^2 v_j``.
    """
    mean, var = broadcast(mean, var)
    p = mean.softmax(dim)
    bend = (p * (1 - p) * var).sum(dim, keepdim=True) / 2
    new_var = (1 - 2 * p) * var + (p * p * var).sum(dim, keepdim=True)
    return mean.log_softmax(dim) - bend, new_var.clamp_min(0)
