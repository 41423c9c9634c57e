"""Kinds of values that settings have; a truth value is no number."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


def whole(value: object) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def positive(value: object) -> bool:
    """Whether it is a finite number above 0.

    >>> positive(0.5), positive("0.5"), positive(True)
    (True, False, False)
    """
    return number(value) and value > 0  # type: ignore[operator]


def require_flags(settings: Any) -> None:
    """ValueError for a setting of a dataclass that is declared as a truth value and is none."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.type == "bool" and not isinstance(value, bool):
            raise ValueError(f"{field.name}={value!r}: must be true or false")
