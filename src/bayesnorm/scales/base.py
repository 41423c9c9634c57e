"""What every scale has: an affine map of the normalized output, part of it random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import noise as stream

Pair = tuple[Tensor, Tensor]


class Scale(nn.Module):
    """Per channel ``s`` and ``b``; the map is split into a part that folds into the weights and a random part.

    In evaluation the output is ``z * gain + shift`` with ``gain, shift = folded()``. When sampling it is
    ``(z * gain + shift) * A + B`` with ``gain, shift = inner()`` and ``A, B = outer(draws)``, one row per sample.
    """

    s: nn.Parameter
    b: nn.Parameter
    columns: Tensor | None
    index: int
    draws_per_channel = 0

    def __init__(self, channels: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.ones(channels, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.zeros(channels, device=device, dtype=dtype))
        self.register_buffer("columns", None, persistent=False)
        self.number_(0)

    def number_(self, index: int) -> None:
        """Take the part of the noise stream that belongs to this layer of the network."""
        self.index = index
        device, channels = self.s.device, self.s.numel()
        parts = [stream.columns(2 * index + i, channels, device=device) for i in range(self.draws_per_channel)]
        self.columns = torch.cat(parts) if parts else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """``to``, ``to_empty`` and the like: no state dict has the columns, so they are computed where they go."""
        before = self.columns
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.columns is not before:
            self.number_(self.index)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        """The columns follow parameters that were assigned and stand on another device."""
        super()._load_from_state_dict(*args)
        if self.columns is not None and self.columns.device != self.s.device:
            self.number_(self.index)

    def options(self) -> dict[str, Any]:
        """The options of its specification, as they are in force."""
        return {}

    @property
    def is_random(self) -> bool:
        """Whether training mode draws."""
        return self.draws_per_channel > 0

    def folded(self) -> Pair:
        """Gain and shift of the mean map."""
        return self.s, self.b

    def inner(self) -> tuple[Tensor | None, Tensor | None]:
        """Gain and shift (None: 1 and 0) applied to ``z`` before the random part."""
        return self.folded()

    def outer(self, draws: Tensor) -> Pair:
        """Factor and summand per sample and channel, from standard normal draws ``(rows, columns)``."""
        raise NotImplementedError

    def output_moments(self) -> Pair:
        """Mean and variance of the output at the mean scales, ``z`` being standardized."""
        gain, shift = self.folded()
        return shift, gain**2

    def spread(self) -> Tensor:
        """Std of the scale of each channel."""
        return torch.zeros_like(self.s)

    def kl(self) -> Tensor | None:
        """KL divergence summed over channels; None without a posterior."""
        return None

    @torch.no_grad()
    def set_(self, s: Tensor, b: Tensor) -> None:
        """Start from the map ``z * s + b``, s >= 0."""
        self.s.copy_(s)
        self.b.copy_(b)

    def extra_repr(self) -> str:
        """Number of channels."""
        return f"{self.s.numel()}"
