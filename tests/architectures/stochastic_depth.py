"""Stochastic depth (Huang et al., 2016, arXiv:1603.09382)."""

from torch import Tensor, nn


class StochasticDepth(nn.Module):
    """Drops a residual branch per sample with probability `p` in training, the identity in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        keep = 1.0 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep).div_(keep)
        return x * mask

    def extra_repr(self) -> str:
        return f"p={self.p}"
