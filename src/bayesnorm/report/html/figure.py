"""A chart with its caption and its numbers; boxes for tables; panels of which one is shown."""

from __future__ import annotations

from collections.abc import Sequence

from .chart import Book, Chart, thinned
from .markup import Html, escape, join, tag
from .numbers import MISSING, show
from .svg import draw, frame

ROWS = 21
"""Of the table beside a chart."""


def figure(book: Book, chart: Chart, caption: str = "") -> Html:
    """The chart, entered into the book."""
    book.add(chart, frame(chart))
    plot = tag("div", draw(chart, book.names), class_="plot", data_chart=chart.id)
    title = tag("figcaption", tag("strong", chart.title), tag("span", caption) if caption else None)
    return tag("figure", title, plot, None if chart.empty else numbers(chart, book.names), id=chart.id)


def numbers(chart: Chart, names: Sequence[str]) -> Html:
    """The table of a chart's values, at a few places where there are many."""
    kept = thinned(len(chart.slots), ROWS)
    head = [chart.at, *(f"{names[line.run]} ({line.note})" if line.note else names[line.run] for line in chart.lines)]
    rows = [[_slot(chart, chart.slots[index]), *_values(chart, chart.slots[index])] for index in kept]
    more = f"{len(kept)} of {len(chart.slots)} points" if len(kept) < len(chart.slots) else "all points"
    return folded(f"Numbers: {more}", table(head, rows, f"{chart.title}: {chart.y.label} by {chart.at}"))


def _slot(chart: Chart, value: float) -> str:
    return f"{value:g}" if chart.x.kind == "count" else show(value, chart.x.kind)


def _values(chart: Chart, slot: float) -> list[str]:
    found = []
    for line in chart.lines:
        index = line.at(slot, chart.reach)
        text = MISSING if index is None else show(line.y[index], chart.y.kind)
        found.append(text if index is None or not line.counts else f"{text} (n = {line.counts[index]:,})")
    return found


def folded(summary: object, *content: object, opened: bool = False) -> Html:
    """Content that opens on a click."""
    return tag("details", tag("summary", summary), *content, open=opened)


def table(head: Sequence[object], rows: Sequence[Sequence[object]], caption: str, class_: str = "") -> Html:
    """A table in a box of its own that scrolls; the first cell of a row is its heading."""
    body = [tag("tr", tag("th", first, scope="row"), [tag("td", cell) for cell in rest]) for first, *rest in rows]
    return boxed(
        caption,
        tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head])),
        tag("tbody", body),
        class_=class_,
    )


def boxed(caption: str, *content: object, class_: str = "") -> Html:
    """A table that scrolls by itself where the page is too narrow; it can be reached by keyboard for that."""
    inner = tag("table", tag("caption", caption, class_="sr"), *content, class_=class_ or None)
    return tag("div", inner, class_="box", tabindex=0, role="region", aria_label=caption)


def switch(group: str, legend: str, panels: Sequence[tuple[str, str, Html]], chosen: str) -> Html:
    """Panels of which one is shown, chosen by radio buttons; needs no script. A single one is shown as it is.

    Arguments:
        group: name of the buttons, unique on the page up to a part after a slash: groups that agree before it are
            switched together by the script.
        legend: what is chosen.
        panels: value, label and content of each.
        chosen: value of the one that is shown at first.
    """
    if len(panels) == 1:
        return panels[0][2]
    parts = []
    for number, (value, label, content) in enumerate(panels):
        key = f"{group.replace('/', '-')}-{number}"
        parts += [
            tag("input", type="radio", name=group, value=value, id=key, checked=value == chosen),
            tag("label", label, for_=key),
            tag("div", content, class_="panel"),
        ]
    return tag("fieldset", tag("legend", legend), *parts, class_="switch")


def section(key: str, title: str, lead: object, *content: object) -> Html:
    """A section of the page with its heading and what it is about."""
    heading = f"{key}-title"
    return tag(
        "section",
        tag("h2", title, id=heading),
        tag("p", lead, class_="lead"),
        *content,
        id=key,
        aria_labelledby=heading,
    )


def grid(*figures: object, class_: str = "grid") -> Html:
    """Figures beside each other as far as there is room."""
    return tag("div", *figures, class_=class_)


def note(*content: object) -> Html:
    """What is not shown, and why."""
    return tag("p", *content, class_="note")


def left_out(names: Sequence[str], why: str) -> Html | None:
    """Which runs a section does not show."""
    return note(f"Not shown: {', '.join(names)} ({why}).") if names else None


def code(text: str) -> Html:
    """A command."""
    return tag("code", text)


def sentence(*content: object) -> Html:
    """Words and markup."""
    return join(*(escape(part) for part in content))
