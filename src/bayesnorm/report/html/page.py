"""The report: one page that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from ...errors import RunError
from ..summary import Summary, judged
from . import looks
from .chart import Book
from .markup import Html, breakable, join, tag
from .sections.calibration import calibration
from .sections.examples import examples
from .sections.noise import noise
from .sections.results import results
from .sections.robustness import robustness
from .sections.selective import selective
from .sections.settings import configuration, environment, overview
from .sections.training import training

CONTENTS = {
    "results": "Results",
    "runs": "Runs",
    "training": "Training",
    "calibration": "Calibration",
    "coverage": "Error and coverage",
    "noise": "Learned noise",
    "examples": "Examples",
    "robustness": "Robustness",
    "configuration": "Configuration",
    "environment": "Environment",
}


def page(summaries: Sequence[Summary], title: str) -> str:
    """The report of some runs as an HTML document; the same runs give the same text.

    Charts are drawn here; the page's script adds reading by pointer and keyboard, hiding runs, sorting and the choice
    of a theme. Nothing is loaded from elsewhere, and the page forbids it.

    Arguments:
        summaries: of the runs, in the order in which they are shown.
        title: heading of the page.
    """
    if not summaries:
        raise RunError("a report needs at least one run: name the folders of some")
    runs = told_apart(distinct(summaries))
    book = Book([run.name for run in runs])
    sections = [
        results(runs),
        overview(runs),
        training(runs, book),
        calibration(runs, book),
        selective(runs, book),
        noise(runs, book),
        examples(runs),
        robustness(runs, book),
        configuration(runs),
        environment(runs),
    ]
    script = _asset("script.js")
    body = tag(
        "body",
        tag("a", "Skip to the report", href="#report", class_="skip"),
        _header(runs, title),
        tag("div", _contents(), _legend(book.names), class_="rail"),
        tag("main", sections, id="report", tabindex=-1),
        tag("div", id="said", class_="sr", aria_live="polite"),
        tag("script", embedded({"runs": book.names, "charts": book.charts}), type="application/json", id="numbers"),
        tag("script", Html(script)),
    )
    return f"<!doctype html>\n{tag('html', _head(title, script), body, lang='en')}\n"


def distinct(summaries: Sequence[Summary]) -> list[Summary]:
    """The runs with names that differ: those of the same name are numbered."""
    total, seen = Counter(run.name for run in summaries), Counter[str]()
    taken = set(total)
    found = []
    for run in summaries:
        name = run.name
        while total[run.name] > 1 and (name in taken or name == run.name):
            seen[run.name] += 1
            name = f"{run.name} ({seen[run.name]})"
        taken.add(name)
        found.append(replace(run, name=name))
    return found


def told_apart(summaries: Sequence[Summary]) -> list[Summary]:
    """The runs with data sets whose names differ where images or splits do: those of the same name are numbered."""
    digests: dict[str, list[str | None]] = {}
    for run in summaries:
        known = digests.setdefault(run.data, [])
        if run.images not in known:
            known.append(run.images)
    return [
        replace(run, data=f"{run.data} ({known.index(run.images) + 1})") if len(known := digests[run.data]) > 1 else run
        for run in summaries
    ]


def embedded(document: Any) -> Html:
    """JSON inside a script element: no text in it can end the element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8").strip()


def _head(title: str, script: str) -> Html:
    # Only this very script may run, whatever a name of a run should manage to smuggle in.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="bayesnorm"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(_asset("style.css"))),
    )


def _header(runs: Sequence[Summary], title: str) -> Html:
    data = list(dict.fromkeys(run.data for run in runs))
    counts = {int(c) for run in runs if (c := _images(run))}
    facts = [
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}",
        f"data: {', '.join(data)}",
        *([f"{counts.pop():,} {judged(runs)} images"] if len(counts) == 1 else []),
    ]
    button = tag("button", "Dark theme", type="button", id="theme", hidden=True)
    facts_line = tag("p", join(*(tag("span", fact) for fact in facts)), class_="facts")
    return tag("header", tag("div", tag("h1", title), facts_line), button)


def _images(run: Summary) -> int | None:
    return (run.evaluation or {}).get("images")


def _contents() -> Html:
    links = [tag("li", tag("a", text, href=f"#{key}")) for key, text in CONTENTS.items()]
    return tag("nav", tag("ul", links), aria_label="Contents")


def _legend(names: Sequence[str]) -> Html:
    entries = [
        tag("li", looks.swatch(run), tag("span", breakable(name), class_="name"), data_legend=run)
        for run, name in enumerate(names)
    ]
    title = tag("h2", "Runs in charts", id="legend-title")
    return tag("section", title, tag("ul", entries), class_="legend", aria_labelledby="legend-title")
