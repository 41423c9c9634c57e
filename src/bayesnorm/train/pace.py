"""When a checkpoint is due."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .config import Config


@dataclass
class Pace:
    """So many seconds after the last one, or at every so manyth step.

    Arguments:
        config: ``checkpoint_seconds`` and ``checkpoint_steps``.
    """

    config: Config
    saved_at: float = field(default_factory=time.monotonic)

    def due(self, step: int) -> bool:
        """Whether to save after this step."""
        every = self.config.checkpoint_steps
        late = time.monotonic() - self.saved_at >= self.config.checkpoint_seconds
        return late or (every is not None and step % every == 0)

    def saved(self) -> None:
        """Seconds count from now."""
        self.saved_at = time.monotonic()
