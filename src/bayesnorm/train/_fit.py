"""Train a network: what the command line calls, and a notebook can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..data.base import Data
from ..data.batches import Batches
from ..norms import BatchNorm
from .config import Config
from .engine import refuse_engine
from .events import Callback
from .lr_search import LrSearch
from .numerics import numerics
from .run import Run
from .run_folder import RunFolder
from .session import Session
from .signals import caught
from .world import World


def fit(
    net: nn.Module,
    data: Data,
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    recipe: dict[str, Any] | None = None,
    stop_at: float | None = None,
) -> Run:
    """Train ``net`` in place.

    Arguments:
        net: any network that returns logits or log-probabilities with the classes on axis 1, on its device.
        data: what it learns; moved to the device of the network.
        config: how; the paper's recipe by default, with the learning rate found by search.
        out: folder of the run. None: nothing is written, and the run cannot be resumed.
        resume: go on with a run that was begun in ``out``; start if there is none, return it if it is finished.
        callbacks: called with the events of ``train.events``.
        recipe: how network and data were made, stored with the run.
        stop_at: time, by ``time.monotonic``, at which to stop as by a signal.

    Raises:
        DivergedError: the loss or the gradient is not finite; the step was not taken.
        StoppedError: SIGTERM or Ctrl-C came, or the time is up; the step was finished and the state saved.
        RunError: ``out`` cannot be used.

    >>> import bayesnorm, bayesnorm.data
    >>> net = bayesnorm.models.all_cnn("weight", "bayes", "same", width=1 / 16, in_channels=1)
    >>> run = fit(net, bayesnorm.data.digits(), Config(epochs=1, batch=256, lr=0.01))
    >>> [record["epoch"] for record in run.history]
    [1]
    """
    with _session(net, data, config or Config(), out, callbacks, recipe, stop_at) as session:
        return session.run(resume)


def find_lr(
    net: nn.Module,
    data: Data,
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    recipe: dict[str, Any] | None = None,
    stop_at: float | None = None,
) -> LrSearch:
    """The search that :func:`fit` makes for ``lr="auto"``, alone; ``fit`` with ``resume`` goes on with its result.

    The arguments are those of :func:`fit`; the network is not changed.
    """
    with _session(net, data, replace(config or Config(), lr="auto"), out, callbacks, recipe, stop_at) as session:
        return session.find_lr(resume)


def check_trainable(net: nn.Module, data: Data, config: Config) -> World:
    """Refuse what cannot be trained, before anything is written; returns the processes that take part."""
    for given, kind, remedy in ((data, Data, "make_data() makes one of tensors"), (config, Config, "Config(epochs=3)")):
        if not isinstance(given, kind):
            raise ValueError(f"{type(given).__name__} given instead of {kind.__name__}: {remedy}")
    strange = {str(p.dtype) for p in net.parameters() if p.requires_grad} - {"torch.float32"}
    if strange:
        raise ValueError(
            f"the network has parameters of {', '.join(sorted(strange))}: call net.float(); precision= decides"
        )
    parameter = next(net.parameters(), None)
    if parameter is None:
        raise ValueError("the network has no parameters: there is nothing to train")
    if config.norm_batch is not None and not any(isinstance(m, BatchNorm | _BatchNorm) for m in net.modules()):
        raise ValueError(f"norm_batch={config.norm_batch}: the network has no batch normalization; leave it out")
    world = World.current(parameter.device)
    Batches(data, config.batch, config.seed, config.norm_batch, world.rank, world.size)
    refuse_engine(net, data, config, world)
    return world


@contextmanager
def _session(
    net: nn.Module,
    data: Data,
    config: Config,
    out: str | Path | None,
    callbacks: Sequence[Callback],
    recipe: dict[str, Any] | None,
    stop_at: float | None = None,
) -> Iterator[Session]:
    """Everything in place that a run needs, and put back afterwards: numerics, signals, the lock of the folder."""
    world = check_trainable(net, data, config)
    device = world.device
    with ExitStack() as stack:
        stack.enter_context(numerics(config, device))
        stop = stack.enter_context(caught(stop_at))
        folder = None if out is None else RunFolder(out)
        yield Session(net, data.to(device), config, world, stop, callbacks, recipe or {}, stack, folder)
