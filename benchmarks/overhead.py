"""Overhead of bayesnorm against plain torch layers on this CPU: compiled, projected, folded, by draws.

    python benchmarks/overhead.py --json results/overhead.json

Every figure is the median over rounds of the ratio of two pieces of code timed one right after the other, in an order
that alternates; beside it stands the ratio of the second piece against itself, which shows the noise of the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesnorm

Work = Callable[[], object]
Row = dict[str, Any]


def ratio(ours: Work, theirs: Work, rounds: int) -> Row:
    """Median ratio over interleaved rounds, with its quartiles, and the ratio of ``theirs`` against itself."""
    for _ in range(3):
        ours(), theirs()
    ratios, null = [], []
    for i in range(rounds):
        order = [ours, theirs, theirs] if i % 2 else [theirs, theirs, ours]
        times = [seconds(work) for work in order]
        mine, first, second = times if i % 2 else (times[2], times[1], times[0])
        ratios.append(mine / first)
        null.append(second / first)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "itself": round(statistics.median(null), 3),
        "rounds": rounds,
    }


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain_all_cnn(norm: bool) -> nn.Sequential:
    """All-CNN by hand, of torch's own layers."""
    layers: list[nn.Module] = []
    before = 3
    for number, convolution in enumerate(m for m in bayesnorm.models.AllCNN().features if isinstance(m, nn.Conv2d)):
        kernel, stride = convolution.kernel_size[0], convolution.stride[0]
        layers.append(nn.Conv2d(before, convolution.out_channels, kernel, stride))
        layers += [nn.BatchNorm2d(convolution.out_channels)] if norm else []
        layers += [nn.LeakyReLU(0.01, inplace=True)] if number < 8 else []
        before = convolution.out_channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LogSoftmax(1))


def training_step(net: nn.Module, x: Tensor, y: Tensor, compiled: bool, bayes: bool) -> Work:
    """A step of SGD with Nesterov momentum; ours with KL and projection."""
    net.train()
    run = torch.compile(net, fullgraph=True) if compiled else net
    groups = bayesnorm.param_groups(net, lr=1e-4) if bayes else [{"params": list(net.parameters()), "lr": 1e-4}]
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    elbo = bayesnorm.ELBO(net, n_data=45_000, nll="log_probs") if bayes else None

    def step() -> None:
        out = run(x)
        loss = elbo(out, y).total if elbo is not None else F.nll_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bayes:
            bayesnorm.project_(net)

    return step


def benchmarks(rounds: int) -> dict[str, Callable[[], Row]]:
    """Each figure by its name."""
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))

    def training(compiled: bool) -> Row:
        ours = training_step(bayesnorm.models.all_cnn(), x, y, compiled, True)
        theirs = training_step(plain_all_cnn(True), x, y, compiled, False)
        return ratio(ours, theirs, rounds)

    def projection() -> Row:
        net = bayesnorm.models.all_cnn()
        return ratio(partial(bayesnorm.project_, net), training_step(net, x, y, False, True), rounds)

    def inference() -> Row:
        folded, plain = bayesnorm.fold(bayesnorm.models.all_cnn()), plain_all_cnn(False).eval()
        with torch.no_grad():
            return ratio(lambda: folded(x), lambda: plain(x), rounds)

    def monte_carlo(images: int) -> Row:
        net, inputs = bayesnorm.models.all_cnn().eval(), torch.randn(images, 3, 32, 32)
        return ratio(partial(bayesnorm.predict, net, inputs, samples=30), partial(looped, net, inputs), rounds)

    return {
        "training step, analytic+bayes / torch BN, eager": partial(training, False),
        "training step, analytic+bayes / torch BN, compiled": partial(training, True),
        "project_ / training step": projection,
        "inference, folded / plain by hand": inference,
        "MC-30, predict / loop of 30 passes, 8 images": partial(monte_carlo, 8),
        "MC-30, predict / loop of 30 passes, 256 images": partial(monte_carlo, 256),
    }


def looped(net: nn.Module, x: Tensor) -> Tensor:
    """What one writes without predict."""
    with torch.no_grad(), bayesnorm.sampling(net):
        return torch.stack([net(x).exp() for _ in range(30)]).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--only", default="", help="run the figures whose name contains this")
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    table = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    for name, run in benchmarks(arguments.rounds).items():
        if arguments.only not in name:
            continue
        row = table[name] = run()
        low, high = row["quartiles"]
        print(f"{name:52s} {row['ratio']:.3f}  [{low:.3f}, {high:.3f}]  itself {row['itself']:.3f}  n={row['rounds']}")
        if arguments.json:
            arguments.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
