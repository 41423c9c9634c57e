"""Figures of what was measured."""

from .curves import lr_curve as lr_curve
from .curves import save as save
from .curves import scale_noise as scale_noise
from .curves import training_curves as training_curves
