"""Batch, weight and analytic normalization with a learned posterior over the scales."""

import importlib as _importlib

from . import bn_noise as bn_noise
from . import models as models
from . import moments as moments
from ._convert import convert as convert
from ._fold import fold as fold
from ._initialize import init_from_data_ as init_from_data_
from ._objective import ELBO as ELBO
from ._objective import kl as kl
from ._parameters import param_groups as param_groups
from ._posterior import posterior as posterior
from ._predict import predict as predict
from ._project import project_ as project_
from ._sampling import sampling as sampling
from ._statistics import input_stats as input_stats
from ._update_bn import update_bn as update_bn
from .norms import Analytic as Analytic
from .norms import Batch as Batch
from .norms import Weight as Weight
from .scales import Bayes as Bayes
from .scales import Noise as Noise
from .scales import Point as Point

_ON_DEMAND = ("data", "evaluate", "report", "train")


def __getattr__(name: str) -> object:
    """Packages that need more than torch, imported when they are first used."""
    if name in _ON_DEMAND:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
