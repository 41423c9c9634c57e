"""Names of runs that got none."""

from __future__ import annotations

from typing import Any

from ..train import Recipe
from ..train.methods import method_name


def default_name(recipe: dict[str, Any], config: dict[str, Any]) -> str:
    """Name of a run that got none."""
    made = Recipe(**recipe)
    method = method_name(made.norm, made.scale, config.get("project", True))
    return f"{made.data}-{method}-seed{config.get('seed', 0)}"
