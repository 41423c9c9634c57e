"""Many runs on one device at once, each with its own folder, checkpoints and fate."""

from __future__ import annotations

import signal
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.base import Data
from ..errors import DivergedError, StoppedError
from ._fit import check_trainable
from .config import Config
from .events import Callback
from .fused.dock import Dock
from .fused.trainer import FusedTrainer
from .lockstep import Turn
from .numerics import numerics
from .run import Run
from .run_folder import RunFolder
from .session import Session
from .signals import caught
from .trainer import Trainer
from .world import World

SHARED = ("precision", "deterministic")
"""Settings that torch has once for all: the members have to agree on them."""


@dataclass(frozen=True)
class Member:
    """One run of a fleet.

    Arguments:
        net: trained in place; all are on one device.
        data: what it learns; members may share it.
        config: how.
        out: folder of the run.
        recipe: stored with the run, so that it can be loaded.
    """

    net: nn.Module
    data: Data
    config: Config
    out: Path
    recipe: dict[str, Any] = field(default_factory=dict)


def fit_fleet(
    members: Mapping[str, Member],
    *,
    resume: bool = False,
    callbacks: Mapping[str, Sequence[Callback]] | None = None,
    stop_at: float | None = None,
) -> dict[str, Run | DivergedError]:
    """Train all members, their steps side by side: while one is looked at, those of the others go on.

    All begin their steps before the first is looked at, those of a learning-rate search too, so that members of one
    form share kernels. Each member becomes what :func:`fit` would have made of it alone, to the last bit: it has
    torch's generators to itself.

    Arguments:
        members: by name.
        resume: go on with what was begun; finished runs are returned as they are.
        callbacks: of each member, called with its events.
        stop_at: time, by ``time.monotonic``, at which to stop as by a signal.

    Returns:
        the run of each member; of one that diverged, the error: it stops alone.

    Raises:
        StoppedError: SIGTERM or Ctrl-C came, or the time is up; every member has saved its state.
        RunError: a folder cannot be used; nothing was trained. After any other error all have saved their state.
    """
    device = _check(members)
    results: dict[str, Run | DivergedError] = {}
    failed: list[Exception] = []
    first = next(iter(members.values())).config
    with ExitStack() as stack:
        stack.enter_context(numerics(first, device))
        stop = stack.enter_context(caught(stop_at))
        if not resume:
            for member in members.values():
                RunFolder(member.out).refuse_taken()
        dock = Dock()
        sessions = {
            name: Session(
                *(member.net, member.data.to(device), member.config, World.current(device), stop),
                *((callbacks or {}).get(name, ()), member.recipe, stack, RunFolder(member.out), dock),
            )
            for name, member in members.items()
        }
        running = {name: session.running(resume) for name, session in sessions.items()}
        turns = {name: Turn(device) for name in members}
        begun = dict.fromkeys(members, False)
        entering = True
        while running:
            present, start = list(running), time.monotonic()
            held = () if stop.wanted else waiting({name: sessions[name].trainer for name in running})
            # All begin their steps, then all are looked at.
            for phase in (False, True):
                for name in [name for name in running if begun[name] is phase and name not in held]:
                    try:
                        with turns[name]:
                            begun[name] = next(running[name])
                    except StopIteration as end:
                        results[name] = end.value
                    except DivergedError as error:
                        results[name] = error
                    except Exception as error:
                        # The others save their state first; what went wrong is told then.
                        stop.signal = stop.signal if stop.wanted else signal.SIGTERM
                        failed = [error, *failed] if not isinstance(error, StoppedError) else [*failed, error]
                    else:
                        continue
                    del running[name]
            for name in present:
                sessions[name].spent += (time.monotonic() - start) / len(present)
            if failed and entering:
                for pieces in running.values():
                    pieces.close()
                break
            entering = False
    if failed:
        raise failed[0]
    return {name: results[name] for name in members}


def waiting(trainers: Mapping[str, Trainer | None]) -> set[str]:
    """Those who wait, as others that could share their kernels have fewer steps to go until their next look.

    Runs that were stopped at different places come together so: soon all ask for the same steps.
    """
    fused = {name: trainer for name, trainer in trainers.items() if isinstance(trainer, FusedTrainer)}
    asked = {name: (_alike(trainer), trainer.ahead()) for name, trainer in fused.items()}
    return {name for name, (alike, ahead) in asked.items() if any(alike == a and ahead > b for a, b in asked.values())}


def _alike(trainer: FusedTrainer) -> Hashable:
    """Equal for trainers that look at the same steps of an epoch."""
    return trainer.form, trainer.config.checkpoint_steps


def _check(members: Mapping[str, Member]) -> torch.device:
    """The device of all members; ValueError for what cannot be trained side by side."""
    if not members:
        raise ValueError("the fleet has no members: name at least one run")
    devices = {parameter.device for member in members.values() for parameter in member.net.parameters()}
    if len(devices) != 1:
        raise ValueError(f"the fleet is on {len(devices)} devices: put all networks on one")
    for name in SHARED:
        found = {getattr(member.config, name) for member in members.values()}
        if len(found) > 1:
            raise ValueError(f"--{name} differs within the fleet ({', '.join(map(str, found))}): give all the same")
    folders = [Path(member.out).resolve() for member in members.values()]
    if len(set(folders)) < len(folders):
        raise ValueError("two members of the fleet have the same folder: give each its own")
    parameters = [id(parameter) for member in members.values() for parameter in member.net.parameters()]
    if len(set(parameters)) < len(parameters):
        raise ValueError("two members of the fleet share parameters: give each a network of its own")
    for member in members.values():
        if check_trainable(member.net, member.data, member.config).size > 1:
            raise ValueError("a fleet is trained by one process: leave torchrun out")
    return devices.pop()
