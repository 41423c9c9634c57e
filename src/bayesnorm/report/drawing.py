"""How figures look, and how they are written: one style for all of them."""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

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
        replace(target, buffer.getvalue())
        written.append(target)
    return written


def replace(path: Path, content: bytes) -> None:
    """Write a file, complete or not at all."""
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


def styled() -> contextlib.AbstractContextManager[None]:
    """Draw inside it: axes are made in the style of all figures."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    # Not by pyplot, which keeps every figure alive and may look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.07)
    return figure


def finite(value: Any) -> float:
    """The number, or NaN, which matplotlib leaves out."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


def positive(value: Any) -> float:
    """The number, or NaN where it is not positive, for logarithmic axes."""
    number = finite(value)
    return number if number > 0 else math.nan


def shown(name: str) -> str:
    """A label of matplotlib's that begins with an underscore is left out: hide the underscore from it."""
    return f"\u200b{name}" if name.startswith("_") else name


def look_of(number: int) -> dict[str, Any]:
    """Colour and marker of the method; the pair is unique for 63 of them."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def values_of(axes: Axes) -> list[float]:
    """All numbers drawn upwards that are finite."""
    drawn: list[Any] = [line.get_ydata() for line in axes.lines]
    return [float(value) for values in drawn for value in values if math.isfinite(value)]


def log_axis(axes: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers, at 1, 2, 5, or at more or fewer places as the values ask for it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if not values or min(values) <= 0:
        return
    ratio = max(values) / min(values)
    if ratio == 1:  # before the scale, which could not make limits of one value
        (axes.set_xlim if which == "x" else axes.set_ylim)(values[0] / 2, values[0] * 2)
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    between: tuple[float, ...]
    between = (1.0,) if ratio > 300 else (1.0, 2.0, 5.0)
    if 1 < ratio < 6 and which == "y":
        between = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=between))
    axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def accuracies(axes: Axes) -> None:
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


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def note(axes: Axes) -> None:
    """Say that there is nothing to show."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=GREY)


def note_if_empty(axes: Axes) -> None:
    """Say so if nothing was drawn."""
    if not values_of(axes):
        note(axes)


def _columns(names: Iterable[str], width: float) -> int:
    """As many as fit: a letter takes about 0.085 inch, line and spaces 0.75."""
    names = list(names)
    longest = max((len(name) for name in names), default=1)
    return max(1, min(len(names), int(width / (0.085 * longest + 0.75))))


def legend_rows(names: Iterable[str], width: float = 12.6) -> int:
    """Lines that a legend of these names takes."""
    names = list(names)
    return math.ceil(len(names) / _columns(names, width))


def legend(figure: Figure, lines: Sequence[Line2D]) -> None:
    """One legend for all axes, below them."""
    if not lines:
        return
    columns = _columns((str(line.get_label()) for line in lines), figure.get_figwidth())
    legend = figure.legend(handles=list(lines), loc="outside lower center", ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)
