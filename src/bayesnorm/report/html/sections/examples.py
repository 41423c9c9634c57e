"""The most and the least certain images, with what the network says about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....data.picture import HIGHLIGHT
from ... import ways
from ...maps import PARTS
from ...summary import Summary, judged
from .. import looks
from ..figure import left_out, note, section, switch
from ..markup import Html, hidden, tag, unseen
from ..numbers import number, show

MEANING = (
    " images that the network is most and least certain of, by the entropy of its prediction. "
    "Bars are the probabilities of the likeliest classes; a mistake is marked by a cross. "
    "Of segmented images, uncertainty is drawn over the image in colour."
)
BARS = 5
ENDS = ("rgb(128 128 128)", f"rgb({' '.join(str(round(255 * part)) for part in HIGHLIGHT)})")
"""Of the colours of a map over a grey image: nothing, and full colour."""


def examples(runs: Sequence[Summary]) -> Html:
    """The section."""
    found = {index: run.examples for index, run in enumerate(runs) if run.examples}
    lead = judged([runs[index] for index in found]).capitalize() + MEANING
    if not found:
        return section("examples", "Examples", lead, note("No run has examples."))
    panels = []
    for index, document in found.items():
        label = looks.who(index, runs[index].name)
        panels.append((str(index), label, _panel(document, runs[index].judged)))
    missing = [run.name for index, run in enumerate(runs) if index not in found]
    content = switch("examples", "Run", panels, str(next(iter(found))))
    return section("examples", "Examples", lead, content, left_out(missing, "no examples"))


def _panel(document: dict[str, Any], part: str) -> Html:
    """Of one run and samples of that part of the data."""
    way = document.get("way")
    by = f", predicted by {ways.label(str(way))}" if way else ""
    classes = [str(name) for name in document.get("classes") or []]
    return tag(
        "div",
        _key(document.get("tops")),
        [
            (
                tag("h3", f"{title}{by}"),
                tag("ul", [_card(entry, classes, part) for entry in document.get(key) or []], class_="cards"),
            )
            for key, title in (("uncertain", "Least certain"), ("certain", "Most certain"))
        ],
    )


def _key(tops: Any) -> Html | None:
    """What the colours over the images mean, a bar for each kind of map."""
    names = {"entropy": "entropy", "mutual_info": "mutual information"}
    known = [
        (names[name], top, " or more" if name == "mutual_info" else "")
        for name, value in (tops or {}).items()
        if name in names and (top := number(value))
    ]
    bar = tag("span", class_="ramp", style=f"background:linear-gradient(to right,{ENDS[0]},{ENDS[1]})")
    rows = [
        tag("div", tag("dt", name), tag("dd", "0", bar, f"{_nats(top)} nats{more}", class_="ends"))
        for name, top, more in known
    ]
    return tag("dl", rows, class_="ramps") if rows else None


def _card(entry: dict[str, Any], classes: Sequence[str], part: str) -> Html:
    maps = "probs" not in entry
    name = f"{part} image {entry.get('index')}"
    shown = _maps(entry, name) if maps else _prediction(entry, classes, name)
    return tag("li", shown, _doubt(entry), class_="wide" if maps else None)


def _picture(content: Any, alt: str) -> Html:
    return tag("img", src=f"data:image/png;base64,{content}", alt=alt, decoding="async")


def _maps(entry: dict[str, Any], name: str) -> Html:
    """Image, truth, prediction and, over the image, the uncertainty of a segmented image."""
    shown = [(part, label) for part, label in PARTS.items() if entry.get(part)]
    return tag(
        "div",
        [
            tag("span", _picture(entry[part], f"{label} of {name}"), unseen(label), class_="part")
            for part, label in shown
        ],
        class_="maps",
    )


def _prediction(entry: dict[str, Any], classes: Sequence[str], name: str) -> list[Html]:
    """Image, true class and distribution of a classified image."""
    probs = [number(value) or 0.0 for value in entry["probs"]]
    order = sorted(range(len(probs)), key=lambda index: -probs[index])
    target = entry.get("target")
    right = bool(order) and order[0] == target
    truth = _class(target, classes)
    mark = (unseen("\N{CHECK MARK}"), hidden("correct: ")) if right else (unseen("\N{BALLOT X}"), hidden("wrong: "))
    return [
        _picture(entry.get("image"), f"{name}: {truth}"),
        tag("p", tag("span", mark, class_="right" if right else "wrong"), " true: ", tag("b", truth), class_="truth"),
        _bars(probs, order, target, classes),
    ]


def _bars(probs: Sequence[float], order: Sequence[int], target: Any, classes: Sequence[str]) -> Html:
    shown = order[:BARS]
    rows = [
        tag(
            "li",
            tag("span", _class(index, classes), class_="class", title=_class(index, classes)),
            tag("span", tag("span", style=f"width:{100 * min(1.0, probs[index]):.1f}%"), class_="bar"),
            tag("span", _share(probs[index]), class_="share"),
            class_="true" if index == target else None,
        )
        for index in shown
    ]
    rest = sum(probs[index] for index in order[BARS:])
    others = len(order) - len(shown)
    if others:
        rows.append(
            tag(
                "li",
                tag("span", f"{others} more", class_="class"),
                tag("span", tag("span", style=f"width:{100 * min(1.0, rest):.1f}%"), class_="bar"),
                tag("span", _share(rest), class_="share"),
                class_="rest",
            )
        )
    return tag("ul", rows, class_="bars", aria_label="predicted distribution")


def _share(value: float) -> str:
    return f"{100 * value:.0f}%" if value >= 0.0995 or value < 5e-4 else f"{100 * value:.1f}%"


def _class(index: Any, classes: Sequence[str]) -> str:
    return classes[index] if isinstance(index, int) and 0 <= index < len(classes) else str(index)


def _doubt(entry: dict[str, Any]) -> Html:
    rows = [("entropy", entry.get("entropy")), ("mutual info.", entry.get("mutual_info"))]
    known = [(name, value) for name, entry in rows if (value := number(entry)) is not None]
    return tag("dl", [tag("div", tag("dt", name), tag("dd", _nats(value))) for name, value in known], class_="doubt")


def _nats(value: float) -> str:
    return "< 0.0001" if 0 <= value < 1e-4 else show(float(f"{value:.2g}"))
