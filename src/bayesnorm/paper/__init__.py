"""Every figure and table of the paper: one file each, and the runs that they share."""

from . import fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fig_a1, fig_a2, fig_a3, fig_a4, noise, table1
from .exhibit import Exhibit as Exhibit
from .lab import Lab as Lab
from .preset import PRESETS as PRESETS
from .preset import Preset as Preset
from .reproduce import reproduce as reproduce
from .wanted import Wanted as Wanted

_FILES = (fig1, fig2, fig3, fig4, fig5, fig6, fig7, table1, noise, fig8, fig9, fig_a1, fig_a2, fig_a3, fig_a4)
EXHIBITS = {file.exhibit.id: file.exhibit for file in _FILES}
"""By the name on the command line, in the order of the paper."""
