"""Gaussian moments through operations: pure rules, a registry that users extend, the pass over a recorded network."""

from . import rules as rules
from .core import Moments as Moments
from .core import register as register
from .lookup import NoRuleError as NoRuleError
