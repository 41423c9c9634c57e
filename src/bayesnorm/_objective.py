"""The negative evidence lower bound in its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from operator import index
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import norm_layers
from .moments.core import wide, without_autocast
from .moments.trace import leaves
from .scales import together

Loss = Callable[[Any, Any], Tensor]


class Terms(NamedTuple):
    """Loss per sample: ``total = nll + kl_factor * kl / (n_data * targets per sample)``."""

    total: Tensor
    nll: Tensor
    kl: Tensor


def kl(net: nn.Module) -> Tensor:
    """KL divergence from posterior to prior, summed over all channels of all layers; 0 without a posterior.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes", preserve=False)
    >>> kl(net).item() > 0
    True
    """
    scales = [layer.scale for layer in norm_layers(net).values()]
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    total = torch.zeros((), device=device)
    with without_autocast(device.type):
        for part in together.kl(scales):
            total = total + part
    return total


class ELBO:
    """``loss = nll + kl_factor * KL / N``: N is the number of training samples, never the batch size; the KL is a sum.

    For targets ``(M, *space)``, as in segmentation, every target is an example: nll is the mean over the targets that
    are not ``ignore_index``, and the KL is divided by ``n_data`` times the targets per sample, read from the target's
    shape.

    Arguments:
        net: the network whose posterior is learned.
        n_data: number of training samples.
        kl_factor: 1 is Bayes; may be changed between calls (warm-up), also a 0-dim tensor.
        nll: what the network returns: ``"logits"`` or ``"log_probs"``, classes on axis 1; or a function
            ``f(output, target)`` that returns the mean negative log-likelihood per target.
        ignore_index: class targets that do not count. Without any that does, the nll of pixels is 0; that of one target
            per sample is torch's, NaN.
        targets_per_sample: examples in one sample, where the target's shape does not tell (one-hot targets of your own
            nll, regression of vectors that count once); None reads it from the shape.

    >>> import bayesnorm
    >>> net = bayesnorm.convert(nn.Sequential(nn.Linear(4, 3)), norm="weight", scale="bayes")
    >>> terms = ELBO(net, n_data=100)(net(torch.randn(8, 4)), torch.randint(3, (8,)))
    >>> torch.allclose(terms.total, terms.nll + terms.kl / 100)
    True
    """

    def __init__(
        self,
        net: nn.Module,
        n_data: int,
        kl_factor: float | Tensor = 1.0,
        nll: Literal["logits", "log_probs"] | Loss = "logits",
        ignore_index: int = -100,
        targets_per_sample: int | None = None,
    ) -> None:
        if isinstance(n_data, bool) or not hasattr(n_data, "__index__") or index(n_data) < 1:
            raise ValueError(f"n_data={n_data!r}: pass the number of training samples (not of batches), at least 1")
        if not isinstance(kl_factor, Tensor) and not (isinstance(kl_factor, Real) and 0 <= float(kl_factor) < math.inf):
            raise ValueError(f"kl_factor={kl_factor!r}: must be a number, not negative")
        if targets_per_sample is not None and not targets_per_sample >= 1:
            raise ValueError(f"targets_per_sample={targets_per_sample}: must be at least 1")
        if not callable(nll) and nll not in ("logits", "log_probs"):
            raise ValueError(
                f"nll={nll!r}: choose 'logits' or 'log_probs', or pass a function (output, target) -> mean loss"
            )
        self.net = net
        self.n_data = index(n_data)
        self.kl_factor: float | Tensor = kl_factor
        self.nll = nll
        self.ignore_index = ignore_index
        self.targets_per_sample = targets_per_sample

    def __call__(self, output: Any, target: Any) -> Terms:
        """The terms for one batch."""
        nll = self._nll(output, target)
        if nll.dim():
            raise ValueError(
                f"nll returned shape {tuple(nll.shape)}: it must return one number, the mean over the targets"
            )
        divergence = kl(self.net)
        examples = self.n_data * self._targets(output, target)
        return Terms(nll + self.kl_factor * divergence / examples, nll, divergence)

    def _nll(self, output: Any, target: Any) -> Tensor:
        if callable(self.nll):
            return self.nll(output, target)
        if not isinstance(output, Tensor):
            raise ValueError(f"the network returned {type(output).__name__}: pass its tensor, or nll=function")
        output = wide(output)
        function = F.nll_loss if self.nll == "log_probs" else F.cross_entropy
        if output.dim() > 2 and not target.is_floating_point():
            wanted = (output.size(0), *output.shape[2:])
            if target.shape != wanted:
                raise ValueError(
                    f"targets of shape {tuple(target.shape)} for outputs {tuple(output.shape)}: pass a class for each "
                    f"output, of shape {wanted}"
                )
            # The loss over pixels has no deterministic kernel on CUDA, that over rows has.
            output, target = output.movedim(1, -1).flatten(0, -2), target.flatten()
            counted = (target != self.ignore_index).sum()
            # Images without a single target that counts (unannotated ones) are worth 0, not 0 / 0.
            total: Tensor = function(output, target, ignore_index=self.ignore_index, reduction="sum")
            mean: Tensor = total / counted.clamp(min=1)
            return mean
        return function(output, target, ignore_index=self.ignore_index)

    def _targets(self, output: Any, target: Any) -> int:
        """Product of the target's axes behind the batch (behind the classes, where it is a distribution over them)."""
        if self.targets_per_sample is not None:
            return self.targets_per_sample
        if not isinstance(target, Tensor):
            target = next((t for t in leaves(target) if isinstance(t, Tensor)), torch.zeros(1))
        named = not callable(self.nll) and isinstance(output, Tensor)
        distribution = named and target.dim() == output.dim() and target.is_floating_point()
        return int(target.shape[2 if distribution else 1 :].numel())
