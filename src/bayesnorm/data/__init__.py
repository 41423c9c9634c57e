"""Data sets as tensors on the device, checked when they are read."""

from .augment import Augment as Augment
from .base import IGNORE as IGNORE
from .base import Data as Data
from .base import Split as Split
from .base import divide as divide
from .base import make_data as make_data
from .cells import cells as cells
from .cifar10 import cifar10 as cifar10
from .digits import digits as digits
from .folder import folder as folder
from .foreign import foreign as foreign
from .strokes import strokes as strokes
