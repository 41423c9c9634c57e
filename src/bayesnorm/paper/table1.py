"""Table 1: accuracy and likelihood on the test set. Trains and evaluates the five methods."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from ..report.drawing import GREY, new_figure, styled
from ..train.documents import Document
from ..train.methods import TABLE
from .exhibit import Exhibit, Measured
from .lab import Lab
from .rows import PAPER as ROWS
from .rows import document, finished, runs
from .wanted import Wanted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = dict(
    zip(
        TABLE,
        (
            "No normalization",
            "Baseline BN",
            "BN with projection",
            "Weight normalization, projection, Bayes",
            "Analytic normalization, projection, Bayes",
        ),
        strict=True,
    )
)
COLUMNS = {
    "accuracy": ("single", "accuracy"),
    "NLL single": ("single", "nll"),
    "NLL MC-10": ("mc10", "nll"),
    "NLL MC-30": ("mc30", "nll"),
}
BEYOND = {"NLL moments": ("moments", "nll"), "NLL single, calibrated": ("single", "calibrated_nll")}
BEYOND |= {"NLL MC-30, calibrated": ("mc30", "calibrated_nll")}
PAPER = {label: ROWS[method] for method, label in LABELS.items()}
QUOTED: dict[str, tuple[float | None, ...]] = {
    "MC dropout, same network (quoted)": (0.9088, None, None, 0.327),
    "ProbOut, same network (quoted)": (0.919, 0.37, None, None),
    "ELU (quoted)": (0.935, None, None, None),
    "ResNet-110 (quoted)": (0.936, None, None, None),
    "Wide ResNet (quoted)": (0.960, None, None, None),
}


def measure(lab: Lab) -> Measured:
    """All figures of the table, and beyond it the prediction by moments and the calibrated likelihoods.

    Means over the seeds that were asked for; one that diverged is left out.
    """
    rows, seeds = {}, {}
    for method, label in LABELS.items():
        found = [lab.test(run)["metrics"] for run in finished(lab, method).values()]
        rows[label] = {name: _mean(found, way, key) for name, (way, key) in {**COLUMNS, **BEYOND}.items()}
        seeds[label] = len(found)
    numbers = {
        f"{label}, {name}": value for label, row in rows.items() for name, value in row.items() if value is not None
    }
    same = len({*seeds.values()}) == 1
    counts = {"seeds": seeds["No normalization"]} if same else {f"{label}, seeds": n for label, n in seeds.items()}
    return {"numbers": counts | numbers, "rows": rows, "seeds": seeds}


def _mean(found: list[Document], way: str, key: str) -> float | None:
    values = [metrics.get(way, {}).get(key) for metrics in found]
    return None if None in values or not values else statistics.fmean(values)


def draw(measured: Measured) -> Figure:
    """The table, measured figures before those of the paper."""
    rows = measured["rows"]
    cells = [
        [_shown(name, row[name], paper) for name, paper in zip(COLUMNS, PAPER[label], strict=True)]
        for label, row in rows.items()
    ]
    cells += [[_shown(name, None, paper) for name, paper in zip(COLUMNS, row, strict=True)] for row in QUOTED.values()]
    figure = new_figure(11.0, 0.42 * (len(cells) + 2))
    with styled():
        axes = figure.subplots()
        axes.axis("off")
        table = axes.table(
            cells,
            rowLabels=[*(_named(label, measured["seeds"][label]) for label in rows), *QUOTED],
            colLabels=[f"{name}\nmeasured (paper)" for name in COLUMNS],
            cellLoc="center",
            loc="center",
            edges="horizontal",
        )
        table.auto_set_font_size(False)
        table.set_fontsize(9.5)
        table.scale(1.0, 1.5)
        for (line, _), cell in table.get_celld().items():
            cell.set_edgecolor("#CCCCCC")
            if line == 0:
                cell.set_height(2 * cell.get_height())
                cell.get_text().set_fontweight("bold")
            if line > len(rows):
                cell.get_text().set_color(GREY)
    return figure


def _named(label: str, seeds: int) -> str:
    return label if seeds <= 1 else f"{label} ({seeds} seeds)"


def _shown(name: str, value: float | None, paper: float | None) -> str:
    form = "{:.2%}" if name == "accuracy" else "{:.3f}"
    parts: list[Any] = [form.format(value) if value is not None else "", f"({form.format(paper)})" if paper else ""]
    return " ".join(part for part in parts if part) or "-"


exhibit = Exhibit(
    "table1",
    "Test accuracy and negative log-likelihood",
    "Analytic normalization with projection and Bayesian learning has the best accuracy and, averaged over draws, the "
    "best likelihood.",
    {
        f"{label}, {name}": value
        for label, row in {**PAPER, **QUOTED}.items()
        for name, value in zip(COLUMNS, row, strict=True)
        if value is not None
    },
    lambda preset: [Wanted(method) for method in TABLE],
    measure,
    draw,
    also=runs,
    more=document,
)
