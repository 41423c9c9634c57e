"""Your own training loop for segmentation, one image per step: python examples/segment_batch_of_one.py maps.png.

A BatchNorm network as it is, and the same network converted, trained alike on pictures of handwritten digits in uneven
light (every pixel is stroke or background; they are drawn here, nothing is downloaded). Prints how well both segment
images they have not seen, and draws where the converted one is unsure. On these easy images both are right alike; what
the converted one adds is the second part of the uncertainty, and that no image depends on another.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesnorm
from bayesnorm.data import strokes
from bayesnorm.data.base import Data
from bayesnorm.evaluate import Tally


class Segmenter(nn.Module):
    """Stands for a network of yours: down, up again, and beside each other, with a BatchNorm after each convolution."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.fine = self._block(1, width)
        self.coarse = self._block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.both = self._block(2 * width, width)
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _block(before: int, after: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each pixel ``(N, 2, H, W)``."""
        fine = self.fine(x)
        coarse = self.coarse(F.max_pool2d(fine, 2))
        out: Tensor = self.last(self.both(torch.cat([fine, self.up(coarse)], 1)))
        return out


def train(net: nn.Module, images: Tensor, masks: Tensor, steps: int, lr: float) -> None:
    """One image per step. Of a network without random scales the KL is 0, and there is nothing to project."""
    elbo = bayesnorm.ELBO(net, n_data=masks.numel())  # a pixel is an example
    opt = torch.optim.Adam(bayesnorm.param_groups(net, lr=lr))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    net.train()
    bayesnorm.project_(net)
    for step in range(steps):
        index = step % len(images)
        loss = elbo(net(images[index : index + 1]), masks[index : index + 1]).total
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        bayesnorm.project_(net)
    net.eval()


def measured(net: nn.Module, images: Tensor, masks: Tensor, samples: int) -> str:
    """Accuracy, NLL and calibration error over all pixels."""
    tally = Tally()
    tally.update(bayesnorm.predict(net, images, samples=samples).log_probs, masks)
    found = tally.compute()
    return f"{100 * found.accuracy:.2f} % of the pixels, NLL {found.nll:.3f}, ECE {found.ece:.3f}"


def draw(path: Path, data: Data, out: bayesnorm.Prediction, rows: int = 3) -> None:
    """Image, truth, prediction and both parts of the uncertainty, an image a row."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = {
        "image": data.test.images[:, 0],
        "truth": data.test.targets,
        "predicted": out.probs[:, 1],
        "entropy": out.entropy,
        "mutual information": out.mutual_info,
    }
    figure, axes = pyplot.subplots(rows, len(columns), figsize=(2 * len(columns), 2 * rows), layout="constrained")
    for column, (name, maps) in zip(axes.T, columns.items(), strict=True):
        column[0].set_title(name)
        for cell, picture in zip(column, maps, strict=False):
            cell.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=float(maps.max()))
            cell.set_axis_off()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Read the options, train both, print and draw."""
    parser = argparse.ArgumentParser(description="Segmentation with one image per step, and where it is unsure.")
    parser.add_argument("picture", type=Path, help="where to draw the maps, a .png")
    parser.add_argument("--steps", type=int, default=600, help="of one image each [%(default)s]")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam [%(default)s]")
    parser.add_argument("--samples", type=int, default=30, help="draws of the scales [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights [%(default)s]")
    given = parser.parse_args()
    if given.steps < 1 or given.samples < 1 or not given.lr > 0:
        sys.exit("segment_batch_of_one: --steps and --samples must be at least 1, --lr positive")
    if not given.picture.parent.is_dir():
        sys.exit(f"segment_batch_of_one: {given.picture.parent}: there is no such folder; make it first")
    torch.manual_seed(given.seed)
    data = strokes()
    images, test = data.standardized(data.train.images), data.standardized(data.test.images)

    plain = Segmenter()
    net = bayesnorm.convert(
        copy.deepcopy(plain), norm="analytic", scale="bayes", input_stats=bayesnorm.input_stats(images), preserve=False
    )
    bayesnorm.init_from_data_(net, images)
    for network in (plain, net):
        train(network, images, data.train.targets, given.steps, given.lr)
    print(f"BatchNorm, one image per step: {measured(plain, test, data.test.targets, 0)}")
    print(f"analytic norm, Bayes, {given.samples} draws: {measured(net, test, data.test.targets, given.samples)}")
    draw(given.picture, data, bayesnorm.predict(net, test, samples=given.samples))
    print(f"drawn: {given.picture}")


if __name__ == "__main__":
    main()
