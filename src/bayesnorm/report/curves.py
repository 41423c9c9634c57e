"""Curves of training runs, of the learned noise and of a learning-rate search, as figures and as files."""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

History = Sequence[Mapping[str, Any]]

# Okabe and Ito's colours, which differ for every kind of colour vision, without the yellow that is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "p", "<", ">", "h")
STYLE: Any = {
    "font.size": 11.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "grid.color": "#E3E3E3",
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "legend.frameon": False,
}
GREY = "#555555"


def training_curves(histories: Mapping[str, History]) -> Figure:
    """Training NLL (running mean, and dashed in evaluation mode), validation NLL and validation accuracy by epoch.

    Arguments:
        histories: for each method its records, one per epoch, with ``epoch``, ``train_nll``, ``train_eval_nll``,
            ``val_nll`` and ``val_accuracy``. What is missing, None or not finite leaves a gap.
    """
    figure = _figure(12.6, 4.1 + 0.28 * _legend_rows(histories))
    with _styled():
        training, loss, accuracy = figure.subplots(1, 3)
        lines = [
            _line(training, number, history, "train_nll", name)
            for number, (name, history) in enumerate(histories.items())
        ]
        for number, history in enumerate(histories.values()):
            _line(training, number, history, "train_eval_nll", linestyle=(0, (4, 2)), marker="none")
            _line(loss, number, history, "val_nll")
            _line(accuracy, number, history, "val_accuracy")
        for axes, label in ((training, "training NLL"), (loss, "validation NLL"), (accuracy, "validation accuracy")):
            axes.set(xlabel="epoch", ylabel=label)
            _whole_numbers(axes.xaxis)
            _note_if_empty(axes)
        training.set_title("solid: running mean, dashed: evaluation mode", fontsize=9.5, color=GREY, loc="left")
        _log(training, "y", _values(training))
        _log(loss, "y", _values(loss))
        _accuracies(accuracy)
        _legend(figure, lines)
    return figure


def scale_noise(ratios: Mapping[str, Mapping[str, float]]) -> Figure:
    """The learned ``sigma / s`` of each layer, a line for each method.

    Arguments:
        ratios: for each method the ratio by layer; layers in the order in which they first occur.
    """
    layers = list(dict.fromkeys(layer for of_method in ratios.values() for layer in of_method))
    longest = max((len(layer) for layer in layers), default=0)
    slanted = longest * len(layers) > 70
    width = min(16.0, max(6.4, 0.55 * len(layers) + 1.6))
    figure = _figure(width, 3.9 + 0.28 * _legend_rows(ratios, width) + (0.06 * longest if slanted else 0.0))
    with _styled():
        axes = figure.subplots()
        lines = []
        for number, (name, of_method) in enumerate(ratios.items()):
            values = [_positive(of_method.get(layer)) for layer in layers]
            lines += axes.plot(range(len(layers)), values, label=_shown(name), **_look(number))
        turn: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        axes.set_xticks(range(len(layers)), [_shown(layer) for layer in layers], parse_math=False, **turn)
        axes.set(xlabel="layer", ylabel="learned noise \N{GREEK SMALL LETTER SIGMA} / s")
        _note_if_empty(axes)
        _log(axes, "y", _values(axes))
        _legend(figure, lines)
    return figure


def lr_curve(trials: Sequence[Mapping[str, Any]], best: float) -> Figure:
    """Training loss of each trial of a learning-rate search; diverged trials are crosses at the top.

    Arguments:
        trials: ``lr`` and ``loss`` of each, in any order; a loss that is None or not finite is a trial that diverged.
        best: the learning rate that was chosen.
    """
    ordered = sorted(trials, key=lambda trial: float(trial["lr"]))
    finished = [(float(t["lr"]), _finite(t["loss"])) for t in ordered if math.isfinite(_finite(t["loss"]))]
    diverged = [float(t["lr"]) for t in ordered if not math.isfinite(_finite(t["loss"]))]
    figure = _figure(6.4, 4.3)
    with _styled():
        axes = figure.subplots()
        lines: list[Line2D] = []
        if finished:
            lines += axes.plot([lr for lr, _ in finished], [loss for _, loss in finished], label="trials", **_look(0))
        else:
            axes.set_yticks([])
        if diverged:
            look: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "linestyle": "none"}
            at_top = axes.get_xaxis_transform()
            lines += axes.plot(
                diverged, [0.97] * len(diverged), label="diverged", transform=at_top, color=COLOURS[1], **look
            )
        if math.isfinite(best):
            lines.append(axes.axvline(best, color=GREY, linestyle=":", label=f"chosen: {best:.3g}"))
        axes.set(xlabel="learning rate", ylabel="training NLL")
        _log(axes, "x", [float(trial["lr"]) for trial in trials])
        _log(axes, "y", [loss for _, loss in finished])
        axes.margins(y=0.12)
        if not trials:
            _note(axes)
        _legend(figure, lines)
    return figure


def save(figure: Figure, path: Path | str) -> list[Path]:
    """Write ``path`` + ``.svg`` and ``.png``, each complete or not at all; the same figure gives the same bytes.

    Arguments:
        figure: any figure of matplotlib.
        path: without suffix; its folder is made if need be.
    """
    import matplotlib

    path = Path(path)
    # Text as text: it can be searched, and is drawn by the viewer's own fonts.
    fixed: Any = {"svg.fonttype": "none", "svg.hashsalt": "bayesnorm"}
    written = []
    for suffix, metadata in ((".svg", {"Date": None, "Creator": None}), (".png", {"Software": None})):
        buffer = io.BytesIO()
        with matplotlib.rc_context(fixed):
            figure.savefig(buffer, format=suffix[1:], dpi=160, metadata=metadata)
        target = path.with_name(path.name + suffix)
        _replace(target, buffer.getvalue())
        written.append(target)
    return written


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path} could not be written ({error.strerror}): make room or choose a folder that can be written to"
        ) from error


def _styled() -> contextlib.AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def _figure(width: float, height: float) -> Figure:
    # Not by pyplot, which keeps every figure alive and may look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.07)
    return figure


def _finite(value: Any) -> float:
    """The number, or NaN, which matplotlib leaves out."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


def _positive(value: Any) -> float:
    number = _finite(value)
    return number if number > 0 else math.nan


def _shown(name: str) -> str:
    """A label of matplotlib's that begins with an underscore is left out: hide the underscore from it."""
    return f"\u200b{name}" if name.startswith("_") else name


def _look(number: int) -> dict[str, Any]:
    """Colour and marker of the method; the pair is unique for 63 of them."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def _line(axes: Axes, number: int, history: History, key: str, name: str = "", **look: Any) -> Line2D:
    """One quantity of a history, with a few markers, for each method at other epochs: they do not cover each other."""
    epochs = [record["epoch"] for record in history]
    values = [(_finite if key == "val_accuracy" else _positive)(record.get(key)) for record in history]
    apart = max(1, len(history) // 8)
    shift = number * apart // max(1, len(COLOURS)) % apart
    look = {**_look(number), "markevery": (shift, apart), **look}
    if sum(map(math.isfinite, values)) == 1:
        look["marker"] = _look(number)["marker"]  # a line of one point is nothing but its marker
        look["markevery"] = 1
        if "linestyle" in look:
            look["markerfacecolor"], look["markeredgecolor"] = "white", look["color"]
    (line,) = axes.plot(epochs, values, label=_shown(name) or None, **look)
    return line


def _values(axes: Axes) -> list[float]:
    """All numbers drawn upwards that are finite."""
    drawn: list[Any] = [line.get_ydata() for line in axes.lines]
    return [float(value) for values in drawn for value in values if math.isfinite(value)]


def _log(axes: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers, at 1, 2, 5, or at more or fewer places as the values ask for it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if not values or min(values) <= 0:
        return
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    between: tuple[float, ...]
    ratio = max(values) / min(values)
    between = (1.0,) if ratio > 300 else (1.0, 2.0, 5.0)
    if 1 < ratio < 6 and which == "y":
        between = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=between))
    axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _accuracies(axes: Axes) -> None:
    """Per cent, and the axis begins where the methods' last values can be told apart, not with the first epochs."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    drawn: list[Any] = [line.get_ydata() for line in axes.lines]
    known = [[float(value) for value in values if math.isfinite(value)] for values in drawn]
    last = [values[-1] for values in known if values]
    if last:
        best = max(map(max, filter(None, known)))
        bottom = max(best - max(0.05, 3 * (best - min(last))), axes.get_ylim()[0])
        axes.set_ylim(bottom, best + 0.06 * (best - bottom))


def _whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _note(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=GREY)


def _note_if_empty(axes: Axes) -> None:
    if not _values(axes):
        _note(axes)


def _columns(names: Iterable[str], width: float) -> int:
    """As many as fit: a letter takes about 0.085 inch, line and spaces 0.75."""
    names = list(names)
    longest = max((len(name) for name in names), default=1)
    return max(1, min(len(names), int(width / (0.085 * longest + 0.75))))


def _legend_rows(names: Iterable[str], width: float = 12.6) -> int:
    names = list(names)
    return math.ceil(len(names) / _columns(names, width))


def _legend(figure: Figure, lines: Sequence[Line2D]) -> None:
    if not lines:
        return
    columns = _columns((str(line.get_label()) for line in lines), figure.get_figwidth())
    legend = figure.legend(handles=list(lines), loc="outside lower center", ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)
