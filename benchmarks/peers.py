"""bayesnorm against the libraries that learn a posterior, and against plain torch, on one network in one run.

    pip install --no-deps -r benchmarks/peers.txt
    python benchmarks/peers.py --json results/peers-cpu.json
    python benchmarks/peers.py --device cuda --compile --json results/peers-gpu.json

For each: time of a training step as its README runs it, time of a Monte Carlo prediction with 30 draws, and (CUDA) peak
memory of the step. Medians of interleaved rounds, in units of torch's batch normalization in the same run. A peer that
is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from overhead import plain_all_cnn
from torch import Tensor, nn

import bayesnorm
from bayesnorm.train.environment import environment

N = 45_000
DRAWS = 30
BASE = "torch batch norm"


@dataclass(frozen=True)
class Peer:
    """A network, its loss, what follows a step, and one of its random predictions."""

    net: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    groups: list[Any]
    after: Callable[[], None] = lambda: None
    predict: Callable[[Tensor], object] | None = None


def drawn(net: nn.Module, learns: Callable[[nn.Module], bool] = lambda module: False) -> Callable[[Tensor], object]:
    """A loop of passes, as these libraries do it; some layers have to be in training mode to draw."""

    def predict(x: Tensor) -> object:
        net.eval()
        for module in net.modules():
            if learns(module):
                module.train()
        with torch.no_grad():
            return sum(net(x).exp() for _ in range(DRAWS)) / DRAWS

    return predict


def plain(norm: bool) -> Peer:
    net = plain_all_cnn(norm)
    return Peer(net, F.nll_loss, list(net.parameters()))


def weight_norm() -> Peer:
    net = plain_all_cnn(False)
    for module in net:
        if isinstance(module, nn.Conv2d):
            nn.utils.parametrizations.weight_norm(module)
    return Peer(net, F.nll_loss, list(net.parameters()))


def dropout() -> Peer:
    layers: list[nn.Module] = []
    for module in plain_all_cnn(False):
        layers += [nn.Dropout(0.2), module] if isinstance(module, nn.Conv2d) else [module]
    net = nn.Sequential(*layers)
    return Peer(net, F.nll_loss, list(net.parameters()), predict=drawn(net, lambda m: isinstance(m, nn.Dropout)))


def ours(norm: str) -> Peer:
    net = bayesnorm.models.all_cnn(norm, "bayes", input_stats=(torch.zeros(3), torch.ones(3)))
    elbo = bayesnorm.ELBO(net, N, nll="log_probs")
    return Peer(
        net,
        lambda out, y: elbo(out, y).total,
        bayesnorm.param_groups(net, lr=1e-4),
        lambda: bayesnorm.project_(net),
        lambda x: bayesnorm.predict(net, x, DRAWS, output="log_probs"),
    )


def bayesian_torch(kind: str) -> Peer:
    found = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    net = plain_all_cnn(False)
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    found.dnn_to_bnn(net, {**prior, "type": kind, "moped_enable": False, "moped_delta": 0.5})
    return Peer(
        net,
        lambda out, y: F.nll_loss(out, y) + found.get_kl_loss(net) / len(y),
        list(net.parameters()),
        predict=drawn(net),
    )


def torchbnn() -> Peer:
    found = importlib.import_module("torchbnn")
    layers: list[nn.Module] = []
    for module in plain_all_cnn(False):
        if isinstance(module, nn.Conv2d):
            shape = (module.in_channels, module.out_channels, module.kernel_size[0], module.stride[0])
            module = found.BayesConv2d(0.0, 0.1, *shape)
        layers.append(module)
    net, kl = nn.Sequential(*layers), found.BKLLoss(reduction="mean", last_layer_only=False)
    return Peer(net, lambda out, y: F.nll_loss(out, y) + 0.01 * kl(net)[0], list(net.parameters()), predict=drawn(net))


def torch_uncertainty() -> Peer:
    layers_ = importlib.import_module("torch_uncertainty.layers.bayesian")
    losses = importlib.import_module("torch_uncertainty.losses")
    layers: list[nn.Module] = []
    for module in plain_all_cnn(False):
        if isinstance(module, nn.Conv2d):
            shape = (module.in_channels, module.out_channels, module.kernel_size[0])
            module = layers_.BayesConv2d(*shape, stride=module.stride[0])
        layers.append(module)
    net = nn.Sequential(*layers)
    kl = losses.KLDiv(net)
    return Peer(net, lambda out, y: F.nll_loss(out, y) + kl() / N, list(net.parameters()), predict=drawn(net))


PEERS: dict[str, Callable[[], Peer]] = {
    "plain": lambda: plain(False),
    BASE: lambda: plain(True),
    "torch weight_norm": weight_norm,
    "MC dropout": dropout,
    "bayesnorm analytic + Bayes": lambda: ours("analytic"),
    "bayesnorm weight + Bayes": lambda: ours("weight"),
    "bayesian-torch": lambda: bayesian_torch("Reparameterization"),
    "bayesian-torch Flipout": lambda: bayesian_torch("Flipout"),
    "torchbnn": torchbnn,
    "TorchUncertainty": torch_uncertainty,
}


def step_of(peer: Peer, x: Tensor, y: Tensor, compiled: bool) -> Callable[[], None]:
    optimizer = torch.optim.SGD(peer.groups, lr=1e-4, momentum=0.9, nesterov=True)
    run = torch.compile(peer.net) if compiled else peer.net

    def step() -> None:
        peer.net.train()
        loss = peer.loss(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peer.after()

    return step


def seconds(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def memory(step: Callable[[], None], device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    return round(torch.cuda.max_memory_allocated() / 2**20, 1)


def measure(device: torch.device, batch: int, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    x = torch.randn(batch, 3, 32, 32, device=device)
    y = torch.randint(10, (batch,), device=device)
    steps, predictions, rows = {}, {}, []
    for name, make in PEERS.items():
        torch.manual_seed(0)
        try:
            peer = make()
        except ImportError as error:
            print(f"{name}: left out ({error})")
            continue
        peer.net.to(device)
        steps[name] = step_of(peer, x, y, compiled)
        if peer.predict is not None:
            predictions[name] = lambda predict=peer.predict: predict(x)
    times: dict[str, dict[str, list[float]]] = {kind: {} for kind in ("step", "predict")}
    for kind, works in (("step", steps), ("predict", predictions)):
        for name, work in works.items():
            work()
            times[kind][name] = []
        for _ in range(rounds if kind == "step" else max(3, rounds // 4)):
            for name, work in works.items():
                times[kind][name].append(seconds(work, device))
    base = times["step"][BASE]
    for name, found in times["step"].items():
        row: dict[str, Any] = {"name": name, "batch": batch, "compiled": compiled}
        row["step_ms"] = round(1e3 * statistics.median(found), 2)
        row["step_over_bn"] = round(statistics.median(a / b for a, b in zip(found, base, strict=True)), 3)
        if name in times["predict"]:
            row["mc30_ms"] = round(1e3 * statistics.median(times["predict"][name]), 1)
        row["memory_mib"] = memory(steps[name], device)
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--compile", action="store_true", help="also every network compiled")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = [
        row
        for compiled in ([False, True] if arguments.compile else [False])
        for batch in arguments.batch
        for row in measure(device, batch, arguments.rounds, compiled)
    ]
    if arguments.json:
        about = {**environment(device, 1), "command": None}
        arguments.json.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
