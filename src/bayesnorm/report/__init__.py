"""Figures and pages of what was measured."""

from .curves import lr_curve as lr_curve
from .curves import scale_noise as scale_noise
from .curves import training_curves as training_curves
from .drawing import save as save
