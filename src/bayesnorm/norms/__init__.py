"""Batch, weight and analytic normalization: each answers mu_hat(w) and sigma_hat(w)."""

from .analytic import Analytic as Analytic
from .analytic import AnalyticNorm as AnalyticNorm
from .base import Norm as Norm
from .batch import Batch as Batch
from .batch import BatchNorm as BatchNorm
from .weight import Weight as Weight
from .weight import WeightNorm as WeightNorm

NormSpec = Batch | Weight | Analytic


def parse(norm: str | NormSpec) -> NormSpec:
    """A norm by name or by its specification.

    >>> parse("analytic")
    Analytic(first_layer='moments')
    """
    if isinstance(norm, NormSpec):
        return norm
    named: dict[str, NormSpec] = {"batch": Batch(), "weight": Weight(), "analytic": Analytic()}
    if not isinstance(norm, str) or norm not in named:
        raise ValueError(
            f"norm={norm!r}: choose 'batch', 'weight' or 'analytic', or pass Batch(...), Weight(), Analytic(...)"
        )
    return named[norm]
