"""Figure A4: sensitivity to disturbed inputs. Evaluates the five methods of the table, single pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.figures import KINDS, robustness
from ..train.methods import TABLE
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(lab: Lab) -> Measured:
    """Accuracy and NLL against the strength of either disturbance, in units of the standardized input."""
    found = {method: lab.robustness(Wanted(method)) for method in TABLE}
    numbers = {
        f"{method}, accuracy undisturbed": document["noise"][0]["accuracy"] for method, document in found.items()
    }
    for kind in KINDS:
        for method, document in found.items():
            numbers[f"{method}, accuracy at the strongest {kind}"] = document[kind][-1]["accuracy"]
    numbers["images"] = found[TABLE[0]]["count"]
    curves = {kind: {method: document[kind] for method, document in found.items()} for kind in KINDS}
    return {"numbers": numbers, "curves": curves}


def draw(measured: Measured) -> Figure:
    """Left: noise, right: attack; in brackets the accuracy without either."""
    return robustness(measured["curves"])


exhibit = Exhibit(
    "figA4",
    "Accuracy under Gaussian noise and under a gradient-sign attack",
    "All methods behave similarly; Bayesian learning does not improve the stability of the single pass.",
    {},
    lambda preset: [Wanted(method) for method in TABLE],
    measure,
    draw,
)
