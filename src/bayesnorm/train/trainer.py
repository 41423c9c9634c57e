"""One network in training: a step, the measurements of an epoch, and the state between two steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._objective import ELBO, Terms
from .._posterior import posterior
from .._predict import predict
from .._project import project_
from .._sampling import numbered, runtimes
from ..data.base import IGNORE, Data
from ..data.batches import Batch, Batches
from ..data.passes import images_of
from ..evaluate.metrics import Metrics, Tally
from ..layers import norm_layers
from ..norms import BatchNorm
from .config import Config
from .diagnosis import explain
from .events import Record
from .memory_format import lay_out_
from .optimizer import Schedule, make_optimizer, state_tensors
from .world import World

EXPLODED = 1e4
"""A mean NLL beyond this is no training any more, though it is finite: chance is log(classes)."""


class Trainer:
    """Everything that a step needs and changes.

    Arguments:
        net: trained in place; returns logits or log-probabilities, classes on axis 1.
        data: on the device of the network.
        config: how.
        lr: learning rate.
        world: the processes that take part.

    ``epoch`` and ``batch`` say which batch comes next; ``sums`` are those of the epoch so far.
    """

    def __init__(self, net: nn.Module, data: Data, config: Config, lr: float, world: World) -> None:
        self.net, self.data, self.lr, self.world = net, data, lr, world
        self.contiguous = [p for p in net.parameters() if p.dim() == 4 and p.is_contiguous()]
        self.batches = Batches(data, config.batch, config.seed, config.norm_batch, world.rank, world.size)
        # Before the optimizer, whose state is laid out like the parameters.
        self.config = lay_out_(net, config, data.device, lambda: self.batches(0, 0).images[:1])
        self.optimizer = make_optimizer(net, config, lr)
        self.schedule = Schedule(config, lr, len(self.batches))
        self.elbo = ELBO(net, len(data.train))
        self.runtimes = runtimes(net) if world.size > 1 else []
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self.forward = self._wrapped()
        self.epoch = 0
        self.batch = 0
        self.sums = dict.fromkeys(("count", "loss", "nll", "kl"), 0.0)

    def _wrapped(self) -> Callable[[Tensor], Tensor]:
        """The network as a step calls it."""
        net = self.net
        for layer in norm_layers(net).values():
            if isinstance(layer.norm, BatchNorm) and self.config.sync_bn:
                layer.norm.sync = True
        if self.config.compile:
            # One graph per batch size: a dynamic one would be used or not depending on where the run was resumed.
            net = cast(nn.Module, torch.compile(net, dynamic=False))
        return net

    @property
    def step_count(self) -> int:
        """Steps taken."""
        return self.epoch * len(self.batches) + self.batch

    @property
    def running_loss(self) -> float:
        """Mean loss of the epoch so far."""
        return self.sums["loss"] / max(1.0, self.sums["count"])

    def begin(self) -> None:
        """Start what the next step computes, where that does not wait for its result; for trainers side by side."""

    def release(self) -> None:
        """Lay the network out in memory as it was before: a layout decides the last digits of what it computes."""
        for parameter in self.contiguous:
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)

    def step(self, stop: bool = False) -> bool:
        """One step: forward, backward, check, update, projection.

        Arguments:
            stop: whether this process wants to stop after the step.

        Returns:
            whether some process wants to.
        """
        batch = self.batches(self.epoch, self.batch)
        self.net.train()
        lr = self.schedule.set_(self.optimizer, self.step_count)
        self.elbo.kl_factor = self.schedule.kl_factor(self.step_count)
        self.optimizer.zero_grad()
        part = self._part(batch)
        with numbered(self.runtimes, batch.samples):
            output = self._output(batch)
        terms = self.elbo(output, batch.targets)
        # Gradients are averaged over the processes: each weighs its nll by its share of the batch.
        (terms.total + (part * self.world.size - 1) * terms.nll if self.world.size > 1 else terms.total).backward()
        found = [p.grad for p in self.parameters if p.grad is not None]
        self.world.average(found)
        norm = torch.nn.utils.get_total_norm(found)
        loss, nll, kl, size, wish = self._agreed(part, terms, norm, stop)
        if not math.isfinite(loss + size) or nll > EXPLODED:
            raise explain(self.net, batch.images, self.step_count, self.epoch, lr, loss, size)
        if self.config.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip, norm)
        self.optimizer.step()
        project_(self.net, weights=self.config.project)
        self.batch += 1
        for name, value in (("count", 1.0), ("loss", loss), ("nll", nll), ("kl", kl)):
            self.sums[name] += batch.whole * value
        return wish > 0

    def _agreed(self, part: Tensor | float, terms: Terms, norm: Tensor, stop: bool) -> list[float]:
        """Loss, nll, KL and gradient norm of the whole batch, and whether some process wants to stop."""
        with torch.no_grad():
            nll, rest = part * terms.nll, (terms.total - terms.nll) / self.world.size
            values = (nll + rest, nll, terms.kl / self.world.size, norm / self.world.size, torch.full_like(nll, stop))
            found: list[float] = self.world.total(torch.stack([value.double() for value in values])).tolist()
        return found

    def _output(self, batch: Batch) -> Tensor:
        return self._network(batch.images)[: len(batch.targets)]

    def _network(self, images: Tensor) -> Tensor:
        """Outputs for all images."""
        images = self._laid_out(images)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            output = self.forward(images)
        if not isinstance(output, Tensor) or output.dim() < 2 or output.size(1) != len(self.data.classes):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"the network returned {shape} for {len(self.data.classes)} classes: it must return one tensor of "
                "logits or log-probabilities with the classes on axis 1"
            )
        return output

    def _laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.config.channels_last else images

    def _part(self, batch: Batch) -> Tensor | float:
        """Share of this process in the targets of the batch."""
        if self.world.size == 1:
            return 1.0
        if not self.data.per_pixel:
            return len(batch.targets) / batch.whole
        counted = (batch.targets != IGNORE).sum().double()
        return counted / self.world.total(counted.clone()).clamp(min=1)

    def next_epoch(self) -> None:
        """Go on to the next epoch."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.sums = dict.fromkeys(self.sums, 0.0)

    def measure(self) -> Record:
        """Measurements at the end of an epoch: loss in training and, where it is due, both splits in evaluation mode.

        Epochs in between have no keys of the latter: None is a measured infinity.
        """
        sums, count = self.sums, self.sums["count"]
        record: Record = {
            "epoch": self.epoch + 1,
            "step": self.step_count,
            "lr": self.schedule.rate(self.step_count - 1),
            "train_loss": sums["loss"] / count,
            "train_nll": sums["nll"] / count,
            "kl": sums["kl"] / count,
        }
        due = (self.epoch + 1) % self.config.eval_every == 0 or self.epoch + 1 >= self.config.epochs
        return {**record, **self._evaluated()} if due else record

    def _evaluated(self) -> Record:
        """Both splits in evaluation mode, and the learned noise."""
        # Running averages of local batch norm differ between processes: rank 0 is the one that saves.
        self.world.share(self.net.buffers())
        limit = len(self.data.val) if self.config.train_eval is None else self.config.train_eval
        train = self.evaluate("train", limit) if limit else None
        val = self.evaluate("val")
        return {
            "train_eval_nll": None if train is None else finite(train.nll),
            "train_eval_accuracy": None if train is None else train.accuracy,
            "val_nll": finite(val.nll),
            "val_accuracy": val.accuracy,
            "val_ece": val.ece,
            "sigma_over_s": {name: scale.relative.mean().item() for name, scale in posterior(self.net).items()},
        }

    def evaluate(self, part: str, limit: int | None = None) -> Metrics:
        """Metrics of a split, in evaluation mode with the mean scales, in the precision of training."""
        tally = Tally(device=self.data.device)
        kind, half = self.data.device.type, self.config.precision == "bf16"
        for images, targets in images_of(self.data, part, self.config.seed, limit, self.world.rank, self.world.size):
            # On CUDA the size of a pass would follow the free memory, and the last digits with it.
            rows = len(images) if images.is_cuda else None
            with torch.autocast(kind, torch.bfloat16, enabled=half and kind == "cuda"):
                found = predict(self.net, self._laid_out(images), samples=0, max_rows=rows)
            tally.update(found.log_probs, targets)
        return Tally.from_sums(self.world.total(tally.sums)).compute()

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name: the tensors themselves, not copies."""
        found = {}
        for name, value in self.net.state_dict().items():
            if not isinstance(value, Tensor):
                raise ValueError(f"the state {name!r} of the network is no tensor: only tensors can be saved")
            found[f"net.{name}"] = value
        return {**found, **state_tensors(self.net, self.optimizer)}

    def counters(self) -> dict[str, Any]:
        """Where the run is."""
        return {"epoch": self.epoch, "batch": self.batch, "sums": self.sums}

    def load_counters(self, counters: dict[str, Any]) -> None:
        """Go to where a run was."""
        self.epoch, self.batch, self.sums = counters["epoch"], counters["batch"], dict(counters["sums"])


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
