"""A scale without noise."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Scale


@dataclass(frozen=True)
class Point:
    """``y = z * s + b`` with trained numbers s and b."""


class PointScale(Scale):
    """``y = z * s + b``."""
