"""One network and one batch size: all subjects in the same rounds."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from alone import Alone
from rounds import Peak, Work, interleaved, milliseconds, peak, ratio, repeated
from rows import Row
from subjects import BASE, DRAWS, LR, NETWORKS, OURS, SUBJECTS, Subject
from torch import Tensor

COLUMNS = {
    "network": "network",
    "batch": "batch",
    "subject": "subject",
    "mode": "mode",
    "posterior": "posterior",
    "step_ms": "step ms",
    "step_over_bn": "/ BN",
    "step_over_ours": "/ ours",
    "memory_mib": "MiB",
    "mc30_ms": "MC-30 ms",
    "mc30_over_ours": "/ ours",
}
NOBODY = Alone()
"""No other calls."""
KEY = ("network", "batch", "subject", "mode")
MODES: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "compiled": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
}


@dataclass(frozen=True)
class Case:
    """What is compared, and how long it is looked at.

    Arguments:
        network: name.
        batch: images per step and per prediction.
        rounds: of training steps.
        steps: of each subject in a round.
        mc_rounds: of predictions.
        passes: timed of the 30 passes of a subject that predicts in a loop; ours is always timed whole.
        modes: eager, compiled.
        width: factor on the channels.
        subjects: those whose name contains one of these.
    """

    network: str
    batch: int
    rounds: int
    steps: int = 1
    mc_rounds: int = 1
    passes: int = DRAWS
    modes: tuple[str, ...] = ("eager",)
    width: float = 1.0
    subjects: tuple[str, ...] = ("",)


@dataclass
class Entrant:
    """A row on its way: what takes its steps, what predicts with it, what it needs."""

    subject: str
    mode: str
    step: Work
    memory: Peak
    posterior: bool = False
    predict: Work | None = None
    about: Row = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of both."""
        return f"{self.subject}, {self.mode}"


def compare(
    case: Case, device: torch.device, more: list[Entrant] | None = None, alone: Alone = NOBODY
) -> Iterator[Row]:
    """Rows of all subjects; ratios are to torch's batch norm and to ours (the first of ``more``, else the eager loop).

    Arguments:
        case: what is compared.
        device: where.
        more: entrants beside the subjects, in the same rounds.
        alone: who measures, where several calls are made at once.
    """
    entrants = list(more or [])
    for mode in case.modes:
        for name in SUBJECTS:
            if any(part in name for part in case.subjects):
                try:
                    entrants.append(_entrant(name, mode, case, device))
                except ImportError as error:
                    print(f"{name}: left out ({error})", flush=True)
                except Exception as error:  # of a peer, which does not end the table
                    failed = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                    yield {**_key(case, name, mode), "failed": failed}
    with alone.measuring():
        steps = interleaved({e.name: e.step for e in entrants}, case.rounds, device)
        draws = interleaved({e.name: e.predict for e in entrants if e.predict is not None}, case.mc_rounds, device)
    ours = more[0].name if more else f"{OURS}, {case.modes[0]}"
    predicted = f"{OURS}, {case.modes[0]}"
    for entrant in entrants:
        found, drawn = steps[entrant.name], draws.get(entrant.name)
        yield {
            **_key(case, entrant.subject, entrant.mode),
            "posterior": entrant.posterior,
            "step_ms": milliseconds(found),
            "step_over_bn": ratio(found, steps.get(f"{BASE}, {case.modes[0]}")),
            "step_over_ours": ratio(found, steps.get(ours)),
            "memory_mib": entrant.memory.allocated,
            "reserved_mib": entrant.memory.reserved,
            "mc30_ms": None if drawn is None else milliseconds(drawn, 1),
            "mc30_over_ours": None if drawn is None else ratio(drawn, draws.get(predicted)),
            "rounds": case.rounds,
            "steps": case.steps,
            "mc_rounds": case.mc_rounds,
            **entrant.about,
        }


def _key(case: Case, subject: str, mode: str) -> Row:
    return {"network": case.network, "batch": case.batch, "subject": subject, "mode": mode}


def _entrant(name: str, mode: str, case: Case, device: torch.device) -> Entrant:
    """Built, and warm: its first step is the one whose memory is measured."""
    torch.manual_seed(0)
    x = torch.randn(case.batch, 3, 32, 32, device=device)
    y = torch.randint(10, (case.batch,), device=device)
    with peak(device) as memory:
        subject = SUBJECTS[name](NETWORKS[case.network], case.width)
        subject.net.to(device)
        if subject.channels_last:
            subject.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = x.contiguous(memory_format=torch.channels_last)
        step = step_of(subject, x, y, MODES[mode])
        for _ in range(1 if mode == "eager" else 3):
            step()
    entrant = Entrant(name, mode, repeated(step, case.steps), memory, subject.posterior)
    if subject.draw is not None and mode == "eager":
        count = DRAWS if subject.at_once else case.passes
        entrant.predict = partial(_drawn, subject.draw, x, count)
        entrant.about = {"mc_passes": count}
        subject.draw(x[:2], 2)
    return entrant


def _drawn(draw: Callable[[Tensor, int], object], x: Tensor, count: int) -> float:
    draw(x, count)
    return count / DRAWS


def step_of(subject: Subject, x: Tensor, y: Tensor, options: dict[str, Any] | None) -> Callable[[], None]:
    """A step of SGD with Nesterov momentum on this batch; network and loss compiled together with ``options``."""
    optimizer = torch.optim.SGD(subject.groups, lr=LR, momentum=0.9, nesterov=True)
    _prime(optimizer)

    def objective(x: Tensor, y: Tensor) -> Tensor:
        return subject.loss(subject.net(x), y)

    run = objective if options is None else torch.compile(_own(objective), **options)

    def step() -> None:
        subject.net.train()
        optimizer.zero_grad()
        if options is not None:
            torch.compiler.cudagraph_mark_step_begin()
        run(x, y).backward()
        optimizer.step()
        subject.after()

    return step


def _prime(optimizer: torch.optim.SGD) -> None:
    """A step without gradient: momentum is there from the first step on, as in all that follow."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _own(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The function with code of its own: torch.compile keeps one list per code, and would search those of others."""
    assert isinstance(function, types.FunctionType)
    return types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__
    )
