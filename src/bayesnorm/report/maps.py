"""Segmented images beside what the network says about them, as a figure."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import ways
from .drawing import new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "image": "image",
    "truth": "truth",
    "predicted": "predicted",
    "entropy_map": "entropy",
    "mutual_info_map": "mutual information",
}
"""Pictures of an entry, with what they are called."""
EACH = 2
"""Images of either kind that are drawn."""
SIDE = 2.2
"""Inches of a picture."""


def segmentation_maps(name: str, examples: Mapping[str, Any]) -> Figure | None:
    """The least and the most certain images, a row each; None if they are not segmented.

    Arguments:
        name: of the run.
        examples: ``examples-test.json`` of a run.
    """
    rows = [
        (f"{kind} certain\nimage {entry['index']}", entry)
        for kind, key in (("least", "uncertain"), ("most", "certain"))
        for entry in (examples.get(key) or [])[:EACH]
        if entry.get("truth")
    ]
    if not rows:
        return None
    shown = [part for part in PARTS if any(entry.get(part) for _, entry in rows)]
    figure = new_figure(SIDE * len(shown) + 0.6, SIDE * len(rows) + 0.6)
    with styled():
        grid = figure.subplots(len(rows), len(shown), squeeze=False)
        for line, (label, entry) in zip(grid, rows, strict=True):
            for axes, part in zip(line, shown, strict=True):
                axes.set(xticks=[], yticks=[])
                axes.grid(False)
                axes.spines[:].set_visible(False)
                if entry.get(part):
                    axes.imshow(_pixels(entry[part]), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
            line[0].set_ylabel(label)
        for axes, part in zip(grid[0], shown, strict=True):
            axes.set_title(PARTS[part])
        figure.supxlabel(f"{name}, {_key(examples)}", fontsize="small", parse_math=False)
    return figure


def _pixels(picture: str) -> Any:
    """Between 0 and 1."""
    from matplotlib.image import imread

    return imread(io.BytesIO(base64.b64decode(picture)), format="png")


def _key(examples: Mapping[str, Any]) -> str:
    """How was predicted, and what the full colour means."""
    tops = examples.get("tops") or {}
    known = [
        f"{PARTS[f'{name}_map']} {top:.2g} nats{' or more' if name == 'mutual_info' else ''}"
        for name, top in tops.items()
    ]
    by = f"predicted by {ways.label(str(examples['way']))}"
    return f"{by}; full colour: {', '.join(known)}" if known else by
