"""The learned noise against that of batch norm, layer by layer. Trains batch norm and analytic norm with Bayes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from ..report.drawing import GREY, legend, log_axis, look_of, new_figure, styled, values_of
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import BATCH, Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAYES = Wanted("analytic+projection+bayes")
LEARNED = (0.39, 0.34, 0.18, 0.29, 0.27, 0.29, 0.31, 0.61, 0.024)
OF_BN = (0.05, 0.03, 0.026, 0.023, 0.02, 0.026, 0.041, 0.045, 0.071)


def measure(lab: Lab) -> Measured:
    """sigma/s of analytic norm, sigma_U of batch norm, and by how much U and V of batch norm grow in training.

    The paper has means over the channels of a layer, of which a few very noisy channels can make up most; hence medians
    too.
    """
    judged = lab.test(BAYES)
    learned = list(judged["sigma_over_s"].values())
    median = [statistics.median(ratios) for ratios in judged["channels"].values()]
    noise = lab.bn_noise(BATCH)
    growth = {
        name: [after / before for before, after in zip(noise["initial"][name], noise["trained"][name], strict=True)]
        for name in ("sigma_u", "sigma_v")
    }
    numbers = {
        **{f"learned sigma/s, layer {i}": value for i, value in enumerate(learned, 1)},
        **{f"median of learned sigma/s, layer {i}": value for i, value in enumerate(median, 1)},
        **{f"sigma_U of BN, layer {i}": value for i, value in enumerate(noise["trained"]["sigma_u"], 1)},
        "growth of sigma_U, last layer": growth["sigma_u"][-1],
        "growth of sigma_V, last layer": growth["sigma_v"][-1],
        "growth of sigma_U, mean over layers": statistics.fmean(growth["sigma_u"]),
        "growth of sigma_V, mean over layers": statistics.fmean(growth["sigma_v"]),
    }
    return {
        "numbers": numbers,
        "learned": learned,
        "median": median,
        "trained": noise["trained"],
        "initial": noise["initial"],
        "growth": growth,
    }


def draw(measured: Measured) -> Figure:
    """Left: noise per layer, dashed the paper's; right: growth of BN's noise from initialization to the end."""
    figure = new_figure(11.0, 4.6)
    with styled():
        left, right = figure.subplots(1, 2)
        layers = range(1, len(measured["learned"]) + 1)
        handles = []
        for number, (label, values, paper) in enumerate(
            (
                ("learned \N{GREEK SMALL LETTER SIGMA}/s, analytic + Bayes", measured["learned"], LEARNED),
                ("batch norm, \N{GREEK SMALL LETTER SIGMA} of U", measured["trained"]["sigma_u"], OF_BN),
            )
        ):
            look = look_of(number)
            handles += left.plot(layers, values, label=label, **look)
            if len(paper) == len(layers):
                left.plot(layers, paper, color=look["color"], linestyle=(0, (4, 2)), alpha=0.7)
        handles += left.plot(
            layers,
            measured["median"],
            label="the same, median over channels",
            **{**look_of(0), "marker": None, "linestyle": ":"},
        )
        (dashed,) = left.plot([], [], color=GREY, linestyle=(0, (4, 2)), label="paper")
        for number, (name, label) in enumerate((("sigma_u", "U"), ("sigma_v", "V")), 2):
            handles += right.plot(
                layers, measured["growth"][name], label=f"growth of the std of {label}", **look_of(number)
            )
        right.axhline(1.0, color=GREY, linewidth=1.0)
        labels: dict[Any, str] = {left: "noise", right: "std after training / at initialization"}
        for axes, label in labels.items():
            axes.set(xlabel="layer", ylabel=label)
            axes.set_xticks(list(layers))
            log_axis(axes, "y", values_of(axes))
        legend(figure, [*handles, dashed])
    return figure


exhibit = Exhibit(
    "noise",
    "Learned noise of the scales, and noise of batch normalization",
    "The learned noise is up to an order of magnitude above that of BN except in the last layer; BN's noise grows "
    "during training, most in the last layer, by up to five times.",
    {
        **{f"learned sigma/s, layer {i}": value for i, value in enumerate(LEARNED, 1)},
        **{f"sigma_U of BN, layer {i}": value for i, value in enumerate(OF_BN, 1)},
        "growth of sigma_U, last layer": "up to 5",
        "growth of sigma_V, last layer": "up to 5",
    },
    lambda preset: [BATCH, BAYES],
    measure,
    draw,
)
