"""How the runs are told apart: by colour and by the shape of a marker, the same in every chart."""

from __future__ import annotations

from collections.abc import Iterable

from .markup import Html, breakable, tag

COLOURS = 7
"""Of Okabe and Ito's palette; the style sheet has them as ``--run-0`` .. ``--run-6``."""

MARKERS = (
    "m-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0-6.4,0z",  # circle
    "m-2.9,-2.9h5.8v5.8h-5.8z",  # square
    "m0,-3.8l3.6,6.3h-7.2z",  # triangle
    "m0,-4.1l4.1,4.1l-4.1,4.1l-4.1,-4.1z",  # diamond
    "m0,3.8l3.6,-6.3h-7.2z",  # triangle down
    "m-1.2,-3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z",  # plus
    "m-3.8,0l6.3,-3.6v7.2z",  # triangle left
    "m0,-3.8l3.6,2.6l-1.4,4.3h-4.4l-1.4,-4.3z",  # pentagon
    "m3.8,0l-6.3,-3.6v7.2z",  # triangle right
)
"""Outlines around a point, so that all markers of a curve are one path; with the colour, unique for 63 runs."""


def colour(run: int) -> str:
    """Class of the elements that belong to a run."""
    return f"run c{run % COLOURS}"


def markers(run: int, points: Iterable[tuple[float, float]]) -> str:
    """Path of the run's marker at each of the points."""
    shape = MARKERS[run % len(MARKERS)]
    return "".join(f"M{x:.1f},{y:.1f}{shape}" for x, y in points)


def swatch(run: int) -> Html:
    """Line and marker, for legends."""
    return tag(
        "svg",
        tag("path", d="M1,7H27", class_="line"),
        tag("path", d=markers(run, [(14, 7)]), class_="mark"),
        class_=f"swatch {colour(run)}",
        viewBox="0 0 28 14",
        width=28,
        height=14,
        aria_hidden="true",
    )


def who(run: int, name: str) -> Html:
    """A run by its look and its name."""
    return tag("span", swatch(run), tag("span", breakable(name)), class_="who")
