"""Training curves."""

from __future__ import annotations

from collections.abc import Sequence

from ....train.events import measured
from ...summary import Summary
from ..chart import POINTS, Book, Chart, Line, thinned
from ..figure import figure, grid, left_out, note, section
from ..markup import Html
from ..numbers import Axis, finite, linear, linear_ticks, logarithmic, number


def training(runs: Sequence[Summary], book: Book) -> Html:
    """The section."""
    missing = [run.name for run in runs if not run.history]
    lead = "Loss and accuracy by epoch. Markers tell the runs apart where colours do not."
    if len(missing) == len(runs):
        return section("training", "Training", lead, note("No run has finished an epoch."))
    epochs = shown_epochs(runs)
    total = len({record["epoch"] for run in runs for record in run.history})
    caption = f"{len(epochs)} of {total} epochs are drawn." if len(epochs) < total else ""
    running = curves(runs, epochs, "train_nll", "running" if has(runs, "train_eval_nll") else "")
    still = curves(runs, epochs, "train_eval_nll", "evaluation mode", dashed=True)
    pairs = [line for run in range(len(runs)) for line in (*running, *still) if line.run == run]
    validation, accuracy = curves(runs, epochs, "val_nll"), curves(runs, epochs, "val_accuracy")
    charts = {
        "Solid: running mean over the epoch. Dashed: evaluation mode.": _chart(
            "train-nll", "Training NLL", _loss(pairs), pairs, epochs
        ),
        "Mean scales, one pass.": _chart("val-nll", "Validation NLL", _loss(validation), validation, epochs),
        "The axis begins where the last epochs can be told apart.": _chart(
            "val-accuracy", "Validation accuracy", accuracies(accuracy), accuracy, epochs
        ),
    }
    figures = [figure(book, chart, " ".join(filter(None, (text, caption)))) for text, chart in charts.items()]
    return section("training", "Training", lead, grid(*figures), left_out(missing, "no finished epoch"))


def shown_epochs(runs: Sequence[Summary]) -> list[float]:
    """Epochs at which every curve is drawn: all, or some of them with the first and the last of each run.

    Of many, those that were evaluated in every run that was under way, if there are such.
    """
    known = sorted({record["epoch"] for run in runs for record in run.history})
    ends = {run.history[place]["epoch"] for run in runs if run.history for place in (0, -1)}
    room = max(2, POINTS - len(ends))
    if len(known) > room:
        judged = [{record["epoch"] for record in measured(run.history)} or set(known) for run in runs if run.history]
        known = [
            epoch for epoch in known if all(epoch in of or not min(of) <= epoch <= max(of) for of in judged)
        ] or known
    return [float(epoch) for epoch in sorted(ends | {known[index] for index in thinned(len(known), room)})]


def has(runs: Sequence[Summary], key: str) -> bool:
    """Whether any record has a number there."""
    return any(number(record.get(key)) is not None for run in runs for record in run.history)


def curves(
    runs: Sequence[Summary], epochs: Sequence[float], key: str, note: str = "", dashed: bool = False
) -> list[Line]:
    """A curve for each run that measured a quantity; epochs where it was not finite are gaps.

    Over epochs that were not evaluated the curve goes on.
    """
    found = []
    kept = set(epochs)
    for index, run in enumerate(runs):
        points = {float(r["epoch"]): number(r.get(key)) for r in run.history if r["epoch"] in kept and key in r}
        if any(value is not None for value in points.values()):
            found.append(Line(index, list(points), list(points.values()), note, dashed))
    return found


def _loss(lines: Sequence[Line]) -> Axis:
    return logarithmic("NLL", finite(value for line in lines for value in line.y))


def accuracies(lines: Sequence[Line]) -> Axis:
    """From where the last values of the runs can be told apart, not from the first epochs."""
    known = [found for line in lines if (found := finite(line.y))]
    if not known:
        return linear("accuracy", [], "percent")
    best, least = max(map(max, known)), min(map(min, known))
    worst_last = min(values[-1] for values in known)
    bottom = max(best - max(0.05, 3 * (best - worst_last)), least - 0.02)
    top = best + 0.05 * (best - bottom)
    return Axis("accuracy", bottom, top, linear_ticks(bottom, min(top, 1.0)), "percent")


def _chart(key: str, title: str, y: Axis, lines: Sequence[Line], epochs: Sequence[float]) -> Chart:
    x = linear("epoch", epochs, "count", low=min(epochs[0], 0.0), high=max(epochs[-1], 1.0))
    whole = tuple(tick for tick in x.ticks if tick == int(tick))
    return Chart(key, title, Axis(x.label, x.low, x.high, whole, x.kind), y, lines, epochs, 0.25, "epoch")
