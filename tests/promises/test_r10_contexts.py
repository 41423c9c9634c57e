"""R10: every context manager of the package restores what it changed when its body raises."""

import importlib
import inspect
import io
import pkgutil
import random
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn

import bayesnorm
from bayesnorm import _linearize, _modes, _sampling, _statistics, _transaction, bn_noise
from bayesnorm.cli import progress, world
from bayesnorm.data import digits
from bayesnorm.evaluate import _bn_draws, baselines
from bayesnorm.moments import core, record
from bayesnorm.train import Config, _fit, fleet, lockstep, memory_format, numerics, run_folder, signals, tensorboard
from bayesnorm.train.events import Started
from bayesnorm.train.fused import large

Case = tuple[AbstractContextManager[Any], Callable[[], Any], Callable[[Any], None]]
"""A context manager, what it must restore, and what the body does to it before it raises."""


def _nothing(entered: Any) -> None:
    pass


def _normalized() -> nn.Module:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(), nn.Conv2d(4, 3, 3))
    return bayesnorm.convert(plain, norm="weight", scale="bayes")


def _batch_normalized() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def _anatomy(net: nn.Module) -> Any:
    """Everything of a network that code can change."""
    return [
        (
            name,
            type(module),
            module.training,
            sorted(vars(module)),
            [len(table) for table in (module._forward_hooks, module._forward_pre_hooks, module._modules)],
            {key: value.tolist() for key, value in module.state_dict().items()},
        )
        for name, module in net.named_modules()
    ]


def _whole_transaction(path: Path) -> Case:
    net = _normalized()

    def wreck(entered: Any) -> None:
        net.train(False)
        net[0].register_forward_hook(lambda *args: None)
        net[1] = nn.Tanh()
        net[3].__class__ = nn.Identity
        net.extra = 1
        with torch.no_grad():
            net[0].scale.s.zero_()

    return _transaction.undone_on_error(net), lambda: _anatomy(net), wreck


def _mode(path: Path) -> Case:
    net = _normalized()
    net[2].eval()
    return _modes.mode(net, False), lambda: _anatomy(net), _nothing


def _frozen(path: Path) -> Case:
    net = _normalized()
    next(net.parameters()).requires_grad_(False)
    return _linearize._frozen(net), lambda: [p.requires_grad for p in net.parameters()], _nothing


def _restored(path: Path) -> Case:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))

    def wreck(entered: Any) -> None:
        net[1].running_mean.fill_(3.0)
        net[1].running_var = torch.zeros(2)

    return _bn_draws.restored({"1": net[1]}), lambda: _anatomy(net), wreck


def _seeded(path: Path) -> Case:
    return (
        baselines._seeded(torch.device("cpu"), 7),
        lambda: torch.get_rng_state().tolist(),
        lambda entered: torch.rand(3),
    )


def _with_each(path: Path) -> Case:
    networks = _sampling.runtimes(_normalized())
    return (
        _sampling.with_each(networks, "samples", [torch.arange(3)]),
        lambda: [runtime.samples for runtime in networks],
        _nothing,
    )


def _turn(path: Path) -> Case:
    return fleet._Turn(torch.device("cpu")), lambda: torch.get_rng_state().tolist(), lambda entered: torch.rand(3)


def _lockstep_turn(path: Path) -> Case:
    return lockstep.Turn(torch.device("cpu")), lambda: torch.get_rng_state().tolist(), lambda entered: torch.rand(3)


def _sample(path: Path) -> Case:
    net = _normalized().eval()
    x = torch.rand(2, 1, 6, 6)

    def look() -> Any:
        return [runtime.sampling for runtime in _sampling.runtimes(net)], net(x).tolist(), _anatomy(net)

    return bayesnorm.sampling(net), look, _nothing


def _watched(path: Path) -> Case:
    net = _normalized()
    return _statistics.watched({net[0]: "input"}), lambda: _anatomy(net), _nothing


def _watching(path: Path) -> Case:
    net = _batch_normalized()
    modules = {"1": net[1]}
    return bn_noise._watching(modules, {"1": []}, {"1": set()}), lambda: _anatomy(net), _nothing


def _batch_mode(path: Path) -> Case:
    net = _batch_normalized()
    modules = {"1": net[1]}

    @torch.no_grad()
    def run(entered: Any) -> None:
        net(torch.rand(4, 1, 6, 6))

    return bn_noise._batch_mode(modules), lambda: _anatomy(net), run


def _as_it_was(path: Path) -> Case:
    net = _normalized()
    net.notes = [1]

    def wreck(entered: Any) -> None:
        net.notes.append(2)
        net.extra = 3
        random.random()

    return (
        record._as_it_was(net, record._Recorder(net, measure=False)),
        lambda: (_anatomy(net), list(net.notes), random.getstate()),
        wreck,
    )


def _leaves(path: Path) -> Case:
    net = _normalized()
    recorder = record._Recorder(net, measure=False)
    return record._leaves(net, recorder, lambda module: module.forward), lambda: _anatomy(net), _nothing


def _python_functions(path: Path) -> Case:
    net = _normalized()
    functions = core.python_functions()
    names = [(function.__module__, function.__name__) for function in functions]

    def look() -> Any:
        return [getattr(importlib.import_module(module), name, None) for module, name in names]

    return record._python_functions(record._Recorder(net, measure=False)), look, _nothing


def _recorder(path: Path) -> Case:
    recorder = record._Recorder(_normalized(), measure=False)
    return recorder, torch._C._len_torch_function_stack, _nothing


def _numerics(path: Path) -> Case:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def look() -> Any:
        flags = (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32)
        return torch.are_deterministic_algorithms_enabled(), flags, torch.get_rng_state().tolist()

    config = Config(seed=5, precision="tf32")
    return numerics.numerics(config, torch.device("cpu")), look, _nothing


def _large_filters(path: Path) -> Case:
    conv = nn.Conv2d(4, 4, 9, padding=4)
    manager = large.large_filters(conv, Config(precision="bf16"), torch.device("cuda"))
    return manager, lambda: large.is_large(conv), _nothing


def _watch(path: Path) -> Case:
    return memory_format._Watch(), torch._C._len_torch_dispatch_stack, _nothing


def _handlers() -> Any:
    return [signal.getsignal(number) for number in signals.SIGNALS]


def _caught(path: Path) -> Case:
    return signals.caught(), _handlers, lambda stop: stop.catch(signal.SIGTERM, None)


def _held(path: Path) -> Case:
    folder = run_folder.RunFolder(path)
    return folder.held(), folder.is_held, _nothing


def _session(path: Path) -> Case:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    session = _fit._session(net, digits(), Config(), path, [], None)
    deterministic = torch.are_deterministic_algorithms_enabled

    def look() -> Any:
        return _handlers(), deterministic(), torch.get_rng_state().tolist(), run_folder.RunFolder(path).is_held()

    return session, look, _nothing


def _tensorboard(path: Path) -> Case:
    pytest.importorskip("tensorboard")
    begin = Started(_normalized(), lr=0.1, step=0, epoch=0, epochs=1, steps_per_epoch=1)
    return tensorboard.tensorboard(path), threading.active_count, lambda write: write(begin)


def _distributed(path: Path) -> Case:
    return world.distributed(), dist.is_initialized, _nothing


def _shown(path: Path) -> Case:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    return progress.shown(console, "title"), lambda: len(console._render_hooks), _nothing


CASES: dict[str, Callable[[Path], Case]] = {
    "bayesnorm._transaction.undone_on_error": _whole_transaction,
    "bayesnorm._modes.mode": _mode,
    "bayesnorm._linearize._frozen": _frozen,
    "bayesnorm.evaluate._bn_draws.restored": _restored,
    "bayesnorm.evaluate.baselines._seeded": _seeded,
    "bayesnorm._sampling.sampling": _sample,
    "bayesnorm._sampling.with_each": _with_each,
    "bayesnorm._statistics.watched": _watched,
    "bayesnorm.bn_noise._watching": _watching,
    "bayesnorm.bn_noise._batch_mode": _batch_mode,
    "bayesnorm.moments.record._as_it_was": _as_it_was,
    "bayesnorm.moments.record._leaves": _leaves,
    "bayesnorm.moments.record._python_functions": _python_functions,
    "bayesnorm.moments.record._Recorder": _recorder,
    "bayesnorm.train.numerics.numerics": _numerics,
    "bayesnorm.train.fused.large.large_filters": _large_filters,
    "bayesnorm.train.memory_format._Watch": _watch,
    "bayesnorm.train.signals.caught": _caught,
    "bayesnorm.train.run_folder.RunFolder.held": _held,
    "bayesnorm.train._fit._session": _session,
    "bayesnorm.train.lockstep.Turn": _lockstep_turn,
    "bayesnorm.train.tensorboard.tensorboard": _tensorboard,
    "bayesnorm.cli.world.distributed": _distributed,
    "bayesnorm.cli.progress.shown": _shown,
}


def _found() -> set[str]:
    """All context managers of the package: generators made into one, and classes that are one."""
    names = [info.name for info in pkgutil.walk_packages(bayesnorm.__path__, "bayesnorm.")]
    names = [name for name in names if not name.startswith("bayesnorm.train.fused._")]  # kernels, which need Triton
    found = set()
    for name in names:
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        members = [value for value in vars(module).values() if getattr(value, "__module__", None) == name]
        classes = [value for value in members if inspect.isclass(value)]
        functions = [f for owner in (members, *(vars(c).values() for c in classes)) for f in owner]
        managers = [c for c in classes if hasattr(c, "__exit__")]
        found |= {f"{f.__module__}.{f.__qualname__}" for f in [*managers, *filter(_is_manager, functions)]}
    return found


def _is_manager(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).name == "contextlib.py" and hasattr(function, "__wrapped__")


def test_the_table_has_them_all() -> None:
    assert _found() == set(CASES)


class _InsideError(Exception):
    pass


UNCHANGED = {"bayesnorm.cli.world.distributed", "bayesnorm.moments.record._python_functions"}
"""In one process, and where no Python function has a rule, these have nothing to do."""
if not large.works(torch.device("cuda")):  # the kernels need a GPU
    UNCHANGED.add("bayesnorm.train.fused.large.large_filters")


@pytest.mark.parametrize("name", CASES)
def test_restores_when_the_body_raises(tmp_path: Path, name: str) -> None:
    manager, look, change = CASES[name](tmp_path)
    before = look()
    inside = []
    with pytest.raises(_InsideError), manager as entered:  # noqa: PT012
        inside.append(look())
        change(entered)
        inside.append(look())
        raise _InsideError
    assert look() == before
    assert name in UNCHANGED or any(found != before for found in inside), "else this would prove nothing"
