"""All moment rules of torch operations: importing this module registers them."""

from __future__ import annotations

from . import rules_arithmetic as rules_arithmetic
from . import rules_layers as rules_layers
from . import rules_pointwise as rules_pointwise
from . import rules_shape as rules_shape
from .rules_random import RANDOM as RANDOM
from .rules_shape import LENDING as LENDING
