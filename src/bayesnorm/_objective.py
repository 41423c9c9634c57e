"""The negative evidence lower bound in its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import norm_layers

Loss = Callable[[Tensor, Tensor], Tensor]


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
    layers = norm_layers(net).values()
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    total = torch.zeros((), device=device)
    with torch.autocast(device.type, enabled=False):
        for layer in layers:
            part = layer.scale.kl()
            if part is not None:
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
        ignore_index: class targets that do not count.

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
    ) -> None:
        if isinstance(n_data, bool) or not isinstance(n_data, int) or n_data < 1:
            raise ValueError(f"n_data={n_data!r}: pass the number of training samples (not of batches), at least 1")
        if isinstance(kl_factor, (int, float)) and kl_factor < 0:
            raise ValueError(f"kl_factor={kl_factor}: must not be negative")
        if not callable(nll) and nll not in ("logits", "log_probs"):
            raise ValueError(
                f"nll={nll!r}: choose 'logits' or 'log_probs', or pass a function (output, target) -> mean loss"
            )
        self.net = net
        self.n_data = n_data
        self.kl_factor = kl_factor
        self.nll = nll
        self.ignore_index = ignore_index

    def __call__(self, output: Tensor, target: Tensor) -> Terms:
        """The terms for one batch."""
        nll = self._nll(output, target)
        if nll.dim():
            raise ValueError(
                f"nll returned shape {tuple(nll.shape)}: it must return one number, the mean over the targets"
            )
        divergence = kl(self.net)
        examples = self.n_data * self._targets_per_sample(output, target)
        return Terms(nll + self.kl_factor * divergence / examples, nll, divergence)

    def _nll(self, output: Tensor, target: Tensor) -> Tensor:
        if callable(self.nll):
            return self.nll(output, target)
        output = output.float() if output.dtype in HALF else output
        function = F.nll_loss if self.nll == "log_probs" else F.cross_entropy
        return function(output, target, ignore_index=self.ignore_index)

    def _targets_per_sample(self, output: Tensor, target: Tensor) -> int:
        """Product of the target's axes behind the batch (behind the classes, where it is a distribution over them)."""
        distribution = target.dim() == output.dim() and target.is_floating_point() and not callable(self.nll)
        if distribution:
            return target.shape[2:].numel()
        return target.shape[1:].numel()


HALF = (torch.float16, torch.bfloat16)
