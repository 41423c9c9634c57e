"""Figure 4: the model of batch norm's noise holds in a trained network. Trains batch norm, and draws batches.

Batches are drawn with replacement, so that the samples of a batch are independent. The variance of the output ``(x - M)
/ S = (x'' + V) U`` over batches, for normalized x'' of mean 0 and variance 1, is ``Var U + Var UV``.
"""

from __future__ import annotations

import math
import statistics
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import bn_noise
from ..bn_noise import Measured as Noise
from ..data.passes import resampled
from ..report.drawing import COLOURS, GREY, MARKERS, legend, log_axis, new_figure, styled, values_of
from ..train.documents import Document, Trained
from .exhibit import Exhibit, Measured
from .lab import Lab
from .wanted import BATCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASYMPTOTIC = 128
"""Batch sizes from which on slopes are fitted. In smaller ones the last layer's variance falls faster than 1/k: each of
its channels answers to one class, of which a batch of 32 has about three samples."""
LAYER = 7
"""Of 2x2 positions in a network without padding; the paper, which counts from 0, calls it 6."""
BATCH_SIZE = 32
LEVEL = 0.01


def statistic(noise: Noise) -> Tensor:
    """``n S^2 / sigma^2`` with the biased S, chi-square of n - 1 degrees for independent normal values."""
    return noise.n / noise.u.square()


def variance(noise: Noise) -> float:
    """Variance of the output over batches, mean over channels."""
    return (noise.u.var(0) + (noise.u * noise.v).var(0)).mean().item()


def kolmogorov_smirnov(noise: Noise, channel: int = 0) -> dict[str, float]:
    """Test of a channel's statistic against its law."""
    from scipy.stats import chi2, kstest

    found = kstest(statistic(noise)[:, channel].cpu().numpy(), chi2(noise.n - 1).cdf)
    return {"statistic": float(found.statistic), "p": float(found.pvalue)}


def independent(values: list[float], n: int) -> float | None:
    """How many independent normal values would make ``n S^2 / sigma^2`` vary as these do; None: they do not vary.

    For m of them it is ``n / m`` times a chi-square of m - 1 degrees, of variance ``2 n^2 (m - 1) / m^2``. Values that
    resemble each other count for fewer, and so do those whose law has heavier tails than a normal one.
    """
    spread = statistics.variance(values)
    if spread == 0:
        return None
    ratio = 2 * n**2 / spread
    return 2.0 if ratio <= 4 else (ratio + math.sqrt(ratio**2 - 4 * ratio)) / 2


def fewer_values(values: list[float], n: int) -> dict[str, float | None]:
    """The test against the law of so many independent values.

    Their number and sigma come from the values themselves, so that p is larger than that of a law known beforehand.
    """
    from scipy.stats import kstest

    count = independent(values, n)
    if count is None:
        return {"count": None, "statistic": None, "p": None}
    found = kstest(values, _law(count, n).cdf)
    return {"count": count, "statistic": float(found.statistic), "p": float(found.pvalue)}


def _law(count: float, n: int) -> Any:
    """Of ``n S^2 / sigma^2`` if the n values behave as so many independent ones."""
    from scipy.stats import chi2

    return chi2(count - 1, scale=n / count)


def gaussian(n: int, batches: int, seed: int = 0) -> Noise:
    """Noise of a batch normalization whose input is independent and normal, n values per channel and batch."""
    generator = torch.Generator().manual_seed(seed)
    inputs = (torch.randn(n, 1, generator=generator) for _ in range(batches))
    return bn_noise.measure(nn.BatchNorm1d(1), inputs)[""]


def measure(lab: Lab) -> Measured:
    """Law of S, and variance against batch size and spatial size."""
    sizes, count = lab.preset.noise_sizes, lab.preset.noise_batches

    def make(run: Trained) -> Document:
        found: dict[int, dict[str, Noise]] = {
            size: bn_noise.measure(run.net, islice(resampled(run.data, size), count)) for size in sizes
        }
        layers = list(found[sizes[0]])
        unit = found[BATCH_SIZE][layers[LAYER - 1]]
        return {
            "layers": layers,
            "positions": [found[sizes[0]][layer].n // sizes[0] for layer in layers],
            "variance": [[variance(found[size][layer]) for size in sizes] for layer in layers],
            "unit": {"n": unit.n, "values": statistic(unit)[:, 0].tolist(), **kolmogorov_smirnov(unit)},
            "accepted": [_accepted(found[BATCH_SIZE][layer]) for layer in layers],
            "gaussian": kolmogorov_smirnov(gaussian(unit.n, count)),
        }

    made = lab.found_out(BATCH, "bn-scaling.json", {"sizes": list(sizes), "batches": count}, make)
    large = [index for index, size in enumerate(sizes) if size >= ASYMPTOTIC]
    slopes = [_slope([sizes[i] for i in large], [values[i] for i in large]) for values in made["variance"]]
    times = [statistics.fmean(k * v for k, v in zip(sizes, values, strict=True)) for values in made["variance"]]
    unit = made["unit"]
    fewer = fewer_values(unit["values"], unit["n"])
    numbers = {
        **{f"slope of the variance against batch size, layer {i}": slope for i, slope in enumerate(slopes, 1)},
        "slope of batch size x variance against spatial size": _slope(made["positions"], times),
        "slope of batch size x variance against spatial size, without layer 1": _slope(
            made["positions"][1:], times[1:]
        ),
        f"KS test, unit of layer {LAYER}, p": unit["p"],
        f"part of the values that count as independent, unit of layer {LAYER}": fewer["count"]
        and fewer["count"] / unit["n"],
        f"KS test with so many values, unit of layer {LAYER}, p": fewer["p"],
        f"KS test, units that pass at {LEVEL:.0%}, mean over layers": statistics.fmean(made["accepted"]),
        "KS test, independent normal input, p": made["gaussian"]["p"],
    }
    kept = ("layers", "positions", "variance", "unit", "accepted", "gaussian")
    return {
        "numbers": numbers,
        "sizes": list(sizes),
        "times": times,
        "independent": fewer,
        **{key: made[key] for key in kept},
    }


def _slope(x: Any, y: Any) -> float:
    """Of a line through the logarithms."""
    return float(statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope)


def _accepted(noise: Noise) -> float:
    """Fraction of the channels whose statistic passes the test."""
    passed = [kolmogorov_smirnov(noise, channel)["p"] > LEVEL for channel in range(noise.u.size(1))]
    return statistics.fmean(passed)


def draw(measured: Measured) -> Figure:
    """Left: a unit against the model; middle: variance against batch size; right: times it against spatial size."""
    figure = new_figure(14.4, 4.7)
    with styled():
        left, middle, right = figure.subplots(1, 3)
        unit = measured["unit"]
        left.hist(unit["values"], bins=30, density=True, color=COLOURS[5], edgecolor="white", label="observed")
        laws = [(_law(unit["n"], unit["n"]), "-", "model")]
        fewer = measured["independent"]["count"]
        if fewer is not None:
            laws.append((_law(fewer, unit["n"]), "--", f"model of {fewer:.0f} values"))
        for law, style, label in laws:
            low, high = law.ppf(0.0005), law.ppf(0.9995)
            x = [low + (high - low) * i / 200 for i in range(201)]
            left.plot(x, [float(law.pdf(value)) for value in x], color=COLOURS[1], linestyle=style, label=label)
        left.set(xlabel="n S\N{SUPERSCRIPT TWO} / \N{GREEK SMALL LETTER SIGMA}\N{SUPERSCRIPT TWO}", ylabel="density")
        left.set_title(f"layer {LAYER}, n = {unit['n']}, KS p = {unit['p']:.2g}", fontsize=10)
        left.set_ylim(top=1.4 * left.get_ylim()[1])  # room for the legend
        left.legend(loc="upper right")
        handles = []
        for number, values in enumerate(measured["variance"]):
            look = _look(number, len(measured["variance"]))
            handles += middle.plot(measured["sizes"], values, label=f"layer {number + 1}", **look)
            right.plot(measured["positions"][number], measured["times"][number], **{**look, "markersize": 8})
        handles.append(_guide(middle, measured["sizes"], measured["variance"][0][0]))
        _guide(right, sorted(measured["positions"]), max(measured["times"]))
        middle.set(xlabel="batch size k", ylabel="variance of BN output")
        right.set(xlabel="spatial size z", ylabel="k x variance")
        for axes in (middle, right):
            log_axis(axes, "y", values_of(axes))
        log_axis(middle, "x", measured["sizes"])
        log_axis(right, "x", measured["positions"])
        legend(figure, handles)
    return figure


def _look(number: int, count: int) -> dict[str, Any]:
    """Layers have an order: their colours go from dark to light."""
    from matplotlib import colormaps

    colour = colormaps["viridis"](0.92 * number / max(1, count - 1))
    return {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markeredgecolor": "white"}


def _guide(axes: Any, x: list[int], start: float) -> Any:
    """A line of slope -1."""
    y = [start * x[0] / value for value in x]
    (line,) = axes.plot(x, y, color=GREY, linestyle=":", label="slope -1")
    return line


exhibit = Exhibit(
    "fig4",
    "Noise of batch normalization in a trained network",
    "S follows the chi-square model; the variance of BN's output falls as one over the batch size in all layers, and "
    "roughly as one over the spatial size.",
    {
        **{f"slope of the variance against batch size, layer {i}": -1 for i in range(1, 10)},
        "slope of batch size x variance against spatial size": "about -1",
        f"KS test, unit of layer {LAYER}, p": "holds rather well",
    },
    lambda preset: [BATCH],
    measure,
    draw,
)
