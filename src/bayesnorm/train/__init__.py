"""Training that survives any crash: configuration, loop, checkpoints, learning-rate search."""

try:
    from ._fit import find_lr as find_lr
except ImportError as error:
    if error.name is None or error.name.startswith("bayesnorm"):
        raise
    raise ImportError(f"bayesnorm.train needs {error.name}: pip install 'bayesnorm[cli]'", name=error.name) from error
from ._fit import fit as fit
from ._load import Loaded as Loaded
from ._load import load as load
from .config import Config as Config
from .fleet import Member as Member
from .fleet import fit_fleet as fit_fleet
from .recipe import Recipe as Recipe
from .run import Run as Run
