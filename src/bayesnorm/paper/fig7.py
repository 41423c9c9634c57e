"""Figure 7: analytic normalization, with projection, with Bayesian learning. Trains the three."""

from __future__ import annotations

from .improvements import improvements

exhibit = improvements(
    "fig7",
    "analytic",
    "Analytic normalization with Bayesian learning",
    "Bayesian learning improves on projection only and on the baseline, most of all in the validation loss.",
    {},
)
