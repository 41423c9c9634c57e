"""The networks that are compared: how each is built, its loss, and how its own documentation runs and predicts with it.

    pip install --no-deps -r benchmarks/peers.txt

A peer that is not installed raises ImportError when it is built.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesnorm

N_DATA = 45_000
DRAWS = 30
LR = 1e-20
"""So small that nothing moves: some peers start ResNet-18 with outputs of 1e10, and one step on would find NaN."""
BASE = "torch batch norm"
OURS = "bayesnorm analytic + Bayes"
PRIOR = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
"""What the README of bayesian-torch has."""


@dataclass(frozen=True)
class Network:
    """An architecture.

    Arguments:
        plain: by width, of torch's own layers, without normalization.
        normalized: by norm, scale and width, of this package.
    """

    plain: Callable[[float], nn.Module]
    normalized: Callable[[str | None, str, float], nn.Module]


STATS = (torch.zeros(3), torch.ones(3))
NETWORKS = {
    "All-CNN": Network(
        lambda width: bayesnorm.models.AllCNN(width=width),
        lambda norm, scale, width: bayesnorm.models.all_cnn(norm, scale, width=width, input_stats=STATS),
    ),
    "ResNet-18": Network(
        lambda width: bayesnorm.models.ResNet18(width=width),
        lambda norm, scale, width: bayesnorm.models.resnet18(norm, scale, width=width, input_stats=STATS),
    ),
}


@dataclass(frozen=True)
class Subject:
    """A network in training.

    Arguments:
        net: returns log-probabilities.
        loss: of output and targets.
        groups: what SGD takes.
        after: follows a step.
        draw: prediction for a batch, averaged over so many draws; None: it predicts with one pass.
        at_once: all draws are one call; else they are a loop of equal passes, of which a few tell the time of all.
        posterior: whether a distribution over parameters is learned.
        channels_last: layout of images and weights in memory.
    """

    net: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    groups: list[Any]
    after: Callable[[], None] = lambda: None
    draw: Callable[[Tensor, int], object] | None = None
    at_once: bool = False
    posterior: bool = False
    channels_last: bool = False


def replaced(net: nn.Module, change: Callable[[nn.Conv2d | nn.Linear], nn.Module]) -> nn.Module:
    """``net`` with something else in place of every convolution and linear layer."""
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d | nn.Linear):
                setattr(parent, name, change(child))
    return net


def passes(net: nn.Module, random: type[nn.Module] | None = None) -> Callable[[Tensor, int], object]:
    """A loop of passes, as these libraries predict; ``random`` are modules that draw in training mode only."""

    def draw(x: Tensor, count: int) -> object:
        net.eval()
        for module in net.modules():
            if random is not None and isinstance(module, random):
                module.train()
        with torch.no_grad():
            return torch.stack([net(x).exp() for _ in range(count)]).mean(0)

    return draw


def plain(network: Network, width: float) -> Subject:
    """Without normalization."""
    net = network.plain(width)
    return Subject(net, F.nll_loss, list(net.parameters()))


def batch_norm(network: Network, width: float) -> Subject:
    """torch's own, behind every convolution, which keeps its bias as in the other subjects."""

    def change(layer: nn.Conv2d | nn.Linear) -> nn.Module:
        if isinstance(layer, nn.Linear):
            return layer
        return nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels))

    net = replaced(network.plain(width), change)
    return Subject(net, F.nll_loss, list(net.parameters()))


def weight_norm(network: Network, width: float) -> Subject:
    """torch's own parametrization."""
    net = replaced(network.plain(width), nn.utils.parametrizations.weight_norm)
    return Subject(net, F.nll_loss, list(net.parameters()))


def dropout(network: Network, width: float) -> Subject:
    """Before every layer, a fifth."""
    net = replaced(network.plain(width), lambda layer: nn.Sequential(nn.Dropout(0.2), layer))
    return Subject(net, F.nll_loss, list(net.parameters()), draw=passes(net, nn.Dropout))


def last(make: Callable[[Network, float], Subject]) -> Callable[[Network, float], Subject]:
    """The same with channels last in memory."""
    return lambda network, width: replace(make(network, width), channels_last=True)


def ours(norm: str) -> Callable[[Network, float], Subject]:
    """As the README has it."""

    def make(network: Network, width: float) -> Subject:
        net = network.normalized(norm, "bayes", width)
        elbo = bayesnorm.ELBO(net, N_DATA, nll="log_probs")
        return Subject(
            net,
            lambda out, y: elbo(out, y).total,
            bayesnorm.param_groups(net, lr=LR),
            lambda: bayesnorm.project_(net),
            lambda x, count: bayesnorm.predict(net, x, count, output="log_probs"),
            at_once=True,
            posterior=True,
        )

    return make


def bayesian_torch(kind: str) -> Callable[[Network, float], Subject]:
    """``dnn_to_bnn`` and ``get_kl_loss`` as its README has them."""

    def make(network: Network, width: float) -> Subject:
        found = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
        net = network.plain(width)
        found.dnn_to_bnn(net, {**PRIOR, "type": kind, "moped_enable": False, "moped_delta": 0.5})
        return Subject(
            net,
            lambda out, y: F.nll_loss(out, y) + found.get_kl_loss(net) / len(y),
            list(net.parameters()),
            draw=passes(net),
            posterior=True,
        )

    return make


def torchbnn(network: Network, width: float) -> Subject:
    """Layers and ``BKLLoss`` as its demonstrations have them."""
    found = importlib.import_module("torchbnn")

    def change(layer: nn.Conv2d | nn.Linear) -> nn.Module:
        module: nn.Module
        if isinstance(layer, nn.Linear):
            module = found.BayesLinear(0.0, 0.1, layer.in_features, layer.out_features)
        else:
            module = found.BayesConv2d(0.0, 0.1, *_shape(layer))
        return module

    net, kl = replaced(network.plain(width), change), found.BKLLoss(reduction="mean", last_layer_only=False)
    return Subject(
        net,
        lambda out, y: F.nll_loss(out, y) + 0.01 * kl(net)[0],
        list(net.parameters()),
        draw=passes(net),
        posterior=True,
    )


def torch_uncertainty(network: Network, width: float) -> Subject:
    """Its Bayesian layers with one draw per step (its tutorial takes three, which is three times as long)."""
    layers, losses = _torch_uncertainty()

    def change(layer: nn.Conv2d | nn.Linear) -> nn.Module:
        module: nn.Module
        if isinstance(layer, nn.Linear):
            module = layers.BayesLinear(layer.in_features, layer.out_features)
        else:
            module = layers.BayesConv2d(*_shape(layer))
        return module

    net = replaced(network.plain(width), change)
    kl = losses.KLDiv(net)
    return Subject(
        net,
        lambda out, y: F.nll_loss(out, y) + kl()[0] / N_DATA,
        list(net.parameters()),
        draw=passes(net),
        posterior=True,
    )


def _shape(layer: nn.Conv2d) -> tuple[Any, ...]:
    return layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding


def _torch_uncertainty() -> tuple[Any, Any]:
    """Its layers and losses; its packages, which import lightning, torchvision and timm, stay unopened."""
    top = "torch_uncertainty"
    spec = importlib.util.find_spec(top) if top not in sys.modules else sys.modules[top].__spec__
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"No module named '{top}'")
    root = spec.submodule_search_locations[0]
    for name, path in ((top, root), *((f"{top}.{part}", f"{root}/{part}") for part in ("layers", "losses", "utils"))):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__, package.__spec__ = [path], spec if name == top else None
            sys.modules[name] = package
    return importlib.import_module(f"{top}.layers.bayesian"), importlib.import_module(f"{top}.losses.bayesian")


SUBJECTS: dict[str, Callable[[Network, float], Subject]] = {
    "plain": plain,
    BASE: batch_norm,
    "torch weight_norm": weight_norm,
    "MC dropout": dropout,
    OURS: last(ours("analytic")),
    "bayesnorm weight + Bayes": last(ours("weight")),
    "bayesian-torch": bayesian_torch("Reparameterization"),
    "bayesian-torch Flipout": bayesian_torch("Flipout"),
    "torchbnn": torchbnn,
    "TorchUncertainty": torch_uncertainty,
    "torch batch norm, channels last": last(batch_norm),
    "bayesnorm, channels first": ours("analytic"),
}
"""Ours as the runner has it, with channels last; the last two are the other way round."""
