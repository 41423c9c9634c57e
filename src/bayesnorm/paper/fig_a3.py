"""Figure A3: recognition with a reject option. Evaluates the five methods of the table, single pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.figures import coverage
from ..train.methods import TABLE
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PART = 0.6


def measure(lab: Lab) -> Measured:
    """Error against coverage, rejecting by the entropy of the prediction."""
    documents = {method: lab.test(Wanted(method)) for method in TABLE}
    curves = {method: found["coverage"]["single"]["entropy"] for method, found in documents.items()}
    numbers = {}
    for method, curve in curves.items():
        numbers[f"{method}, error at a coverage of {PART:.0%}"] = _error(curve, PART)
        numbers[f"{method}, AURC"] = documents[method]["metrics"]["single"]["aurc"]
    return {"numbers": numbers, "curves": curves}


def _error(curve: dict[str, list[float]], coverage: float) -> float:
    """At the first point that covers so much."""
    return next(risk for part, risk in zip(curve["coverage"], curve["risk"], strict=True) if part >= coverage)


def draw(measured: Measured) -> Figure:
    """Error rate of what is classified against its portion."""
    return coverage(measured["curves"])


exhibit = Exhibit(
    "figA3",
    "Error against coverage, rejecting by predictive entropy",
    "Near-zero error is possible at a coverage of about 60 %; regularized methods are better at all thresholds.",
    {f"{method}, error at a coverage of {PART:.0%}": "near 0" for method in TABLE},
    lambda preset: [Wanted(method) for method in TABLE],
    measure,
    draw,
)
