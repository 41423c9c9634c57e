"""A section that shows something of every way of predicting, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import ways
from ...summary import Summary, judged
from ..figure import code, left_out, note, section, switch
from ..markup import Html

Found = dict[int, dict[str, Any]]
"""What the evaluations have, by the number of the run and the way of predicting."""


def by_way(
    runs: Sequence[Summary], key: str, heading: tuple[str, str, str], panel: Callable[[Found, str], Html]
) -> Html:
    """The section, with a switch between the ways.

    Arguments:
        key: what of an evaluation is shown.
        heading: id, title and lead of the section.
        panel: draws one way for all runs that have it.
    """
    found = {i: content for i, run in enumerate(runs) if (content := (run.evaluation or {}).get(key))}
    if not found:
        return section(*heading, note("No run was evaluated yet: ", code("bayesnorm eval RUN"), " does it."))
    missing = [run.name for i, run in enumerate(runs) if i not in found]
    known = ways.ordered(way for content in found.values() for way in content)
    panels = [(way, ways.label(way), panel(found, way)) for way in known]
    shown = switch(heading[0], "Prediction", panels, ways.most(known))
    return section(*heading, shown, left_out(missing, f"not evaluated on the {judged(runs)} set"))
