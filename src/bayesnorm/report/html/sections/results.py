"""The table of metrics: a row for each run and way of predicting, the best of each column marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import ways
from ...summary import Summary, judged
from .. import looks
from ..figure import boxed, code, folded, left_out, note, section, sentence
from ..markup import Html, hidden, join, tag, unseen
from ..numbers import INFINITE, MISSING, number


@dataclass(frozen=True)
class Column:
    """A metric.

    Arguments:
        key: in the document.
        name: in the table.
        hint: what it means.
        better: 1 if more is better, -1 if less is, 0 if neither.
        digits: after the point.
        percent: whether it is a share.
    """

    key: str
    name: str
    hint: str
    better: int
    digits: int = 4
    percent: bool = False

    def show(self, metrics: dict[str, Any]) -> str:
        """Its value in words: a dash where it was not measured, infinity where it is null."""
        value = number(metrics.get(self.key))
        if value is None:
            fitted = self.key == "nll" or metrics.get("temperature") is not None
            return INFINITE if self.key in metrics and self.key.endswith("nll") and fitted else MISSING
        if self.percent:
            return f"{100 * value:.{self.digits}f}\N{NO-BREAK SPACE}%"
        return f"{value:,.{self.digits}f}"


MAIN = (
    Column("accuracy", "accuracy", "share of correct predictions", 1, 2, True),
    Column("nll", "NLL", "mean negative log-likelihood of the true class", -1),
    Column("calibrated_nll", "NLL at T", "NLL after temperature scaling fitted on the validation set", -1),
    Column("temperature", "T", "the fitted temperature: above 1 the network was too sure", 0, 2),
    Column("brier", "Brier", "squared distance of the probabilities from the truth", -1),
    Column("ece", "ECE", "expected calibration error: |confidence - accuracy| over 15 bins", -1),
    Column("aurc", "AURC", "area under the risk-coverage curve, by entropy", -1, 5),
    Column(
        "coverage_at_1",
        "cov. at 1 %",
        "share of images (or pixels) that can be kept at an error of 1 %, by entropy",
        1,
        1,
        True,
    ),
    Column("iou", "IoU", "intersection over union of the foreground's pixels, true and predicted", 1),
    Column("dice", "Dice", "twice the intersection over the sum of true and predicted foreground", 1),
    Column("seg", "SEG", "mean Jaccard index of true objects with the predicted ones that cover most of them", 1),
)
MORE = (
    Column("count", "count", "how many images, or pixels of images, were predicted", 0, 0),
    Column("adaptive_ece", "adaptive ECE", "calibration error over bins of equal counts", -1),
    Column("calibrated_ece", "ECE at T", "ECE after temperature scaling", -1),
    Column("excess_aurc", "excess AURC", "AURC above that of a perfect order of the same predictions", -1, 5),
    Column("aurc_max_prob", "AURC, max prob.", "area under the risk-coverage curve, by the highest probability", -1, 5),
    Column("entropy", "entropy", "of the predictions, mean in nats", 0),
    Column("design_effect", "design effect", "pixels of an image that count as one, as neighbours err together", 0, 1),
    Column("mutual_info", "mutual info.", "part of the entropy due to not knowing the scales, mean in nats", 0, 5),
)


@dataclass(frozen=True)
class Row:
    """A run predicting in one way."""

    run: int
    way: str
    data: str
    metrics: dict[str, Any]


def rows_of(runs: Sequence[Summary]) -> list[Row]:
    """All that was evaluated."""
    found = []
    for index, run in enumerate(runs):
        metrics = (run.evaluation or {}).get("metrics") or {}
        found += [Row(index, way, run.data, metrics[way]) for way in ways.ordered(metrics)]
    return found


def best_rows(rows: Sequence[Row], column: Column) -> set[int]:
    """Which rows are best in a column, of their data set; what reads the same is equally good.

    Nothing is best without something else to compare with.
    """
    found: set[int] = set()
    for data in dict.fromkeys(row.data for row in rows) if column.better else ():
        known = {
            i: v for i, r in enumerate(rows) if r.data == data and (v := number(r.metrics.get(column.key))) is not None
        }
        if len(known) > 1:
            top = max(known, key=lambda index: column.better * known[index])
            text = column.show(rows[top].metrics)
            found |= {index for index in known if column.show(rows[index].metrics) == text}
    return found


def results(runs: Sequence[Summary]) -> Html:
    """The section."""
    rows = rows_of(runs)
    missing = [run.name for run in runs if not (run.evaluation or {}).get("metrics")]
    on = f"on the {judged(runs)} set"
    if not rows:
        content = note(f"No run was evaluated {on} yet: ", code("bayesnorm eval RUN"), " does it.")
        return section("results", "Results", f"Metrics {on}.", content)
    several = len({run.data for run in runs}) > 1
    each = ", each data set by itself (of one name, other images or splits are numbered)" if several else ""
    lead = sentence(f"Metrics {on}, the best of each column in ", tag("strong", "bold"), f"{each}.")
    return section(
        "results",
        "Results",
        lead,
        headline(runs, rows),
        metrics_table(runs, rows, MAIN, f"Metrics {on}"),
        folded("More metrics", metrics_table(runs, rows, MORE, f"Further metrics {on}")),
        folded("What the columns mean", glossary()),
        left_out(missing, f"not evaluated {on}"),
    )


def headline(runs: Sequence[Summary], rows: Sequence[Row]) -> Html | None:
    """The best value of four metrics and whose it is; nothing where runs cannot be compared."""
    if len(rows) < 2 or len({row.data for row in rows}) > 1:
        return None
    tiles = []
    for column, title in (
        (MAIN[0], "Highest accuracy"),
        (MAIN[1], "Lowest NLL"),
        (MAIN[5], "Lowest ECE"),
        (MAIN[6], "Lowest AURC"),
    ):
        best = sorted(best_rows(rows, column))
        if best:
            row = rows[best[0]]
            tie = f", and {len(best) - 1} more" if len(best) > 1 else ""
            whose = tag("dd", looks.who(row.run, f"{runs[row.run].name}, {ways.label(row.way)}{tie}"), class_="whose")
            tiles.append(tag("div", tag("dt", title), tag("dd", column.show(row.metrics), class_="value"), whose))
    return tag("dl", tiles, class_="tiles") if tiles else None


def metrics_table(runs: Sequence[Summary], rows: Sequence[Row], columns: Sequence[Column], caption: str) -> Html:
    """A table that the script makes sortable; columns that nobody measured are left out."""
    columns = [column for column in columns if any(column.show(row.metrics) != MISSING for row in rows)]
    several = len({row.data for row in rows}) > 1
    best = {column.key: best_rows(rows, column) for column in columns}
    head = ["run", *(["data"] if several else []), "prediction"]
    body = []
    for index, row in enumerate(rows):
        first = index == 0 or rows[index - 1].run != row.run
        cells = [_cell(column, row.metrics, index in best[column.key]) for column in columns]
        body.append(
            tag(
                "tr",
                tag("th", looks.who(row.run, runs[row.run].name), scope="row"),
                tag("td", row.data) if several else None,
                tag("td", ways.label(row.way), class_="word"),
                cells,
                class_="first" if first else None,
            )
        )
    names = [tag("th", name, scope="col") for name in head]
    heads = [tag("th", column.name, scope="col", title=column.hint, class_="number") for column in columns]
    return boxed(caption, tag("thead", tag("tr", names, heads)), tag("tbody", body), class_="sortable metrics")


def _cell(column: Column, metrics: dict[str, Any], best: bool) -> Html:
    text = column.show(metrics)
    value = number(metrics.get(column.key))
    shown: object = join(tag("strong", text), hidden(" (best)")) if best else text
    if text == INFINITE:
        shown = join(unseen(text), hidden("infinite"))
    return tag("td", shown, class_="number", data_value="inf" if text == INFINITE else value)


def glossary() -> Html:
    """What the metrics mean."""
    return tag("dl", [(tag("dt", c.name), tag("dd", c.hint)) for c in (*MAIN, *MORE)], class_="glossary")
