"""Methods by the names that tables and figures use: ``batch+projection``, ``analytic+projection+bayes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NORMS = ("none", "batch", "weight", "analytic")
TABLE = ("none", "batch", "batch+projection", "weight+projection+bayes", "analytic+projection+bayes")
"""The rows of the paper's table."""


def method_name(norm: str, scale: str, project: bool) -> str:
    """Name of a method.

    >>> method_name("analytic", "bayes", True)
    'analytic+projection+bayes'
    """
    parts = [norm, *(["projection"] if project and norm != "none" else []), *([scale] if scale != "point" else [])]
    return "+".join(parts)


def method_of(about: Mapping[str, Any]) -> str:
    """Name of the method of a run, by its configuration."""
    recipe = about["recipe"]
    return method_name(recipe["norm"], recipe["scale"], about["config"]["project"]) if recipe else "own network"


def settings_of(method: str) -> dict[str, Any]:
    """Settings of recipe and configuration of a method.

    >>> settings_of("batch+projection")
    {'norm': 'batch', 'scale': 'point', 'project': True}
    """
    norm, *parts = method.split("+")
    scale = next((part for part in parts if part in ("bayes", "noise")), "point")
    found: dict[str, Any] = {"norm": norm, "scale": scale, "project": "projection" in parts}
    if norm not in NORMS or method_name(**found) != method:
        raise ValueError(
            f"unknown method {method!r}: choose a norm ({', '.join(NORMS)}), +projection, +noise or +bayes"
        )
    return found
