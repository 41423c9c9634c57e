"""What the layers of a network share: statistics of the moment pass, and the noise of training."""

import copy
import math
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import MEMBERS, NETWORKS, NORMS, RANDOM, converted, inputs, outputs_of_rank
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bayesnorm
from bayesnorm import noise
from bayesnorm._scope import TRAINING, Scope
from bayesnorm.layers import NormLayer, norm_layers
from bayesnorm.moments.program import Program
from bayesnorm.runtime import Runtime

everywhere = pytest.mark.parametrize(("network", "norm", "scale"), MEMBERS)


def at(net: nn.Module, step: int, key: int | None = None) -> nn.Module:
    """The network, its counters set."""
    net.noise_step.fill_(step)
    if key is not None:
        net.noise_key.fill_(key)
    return net


@everywhere
@torch.no_grad()
def test_noise_of_training_is_a_function_of_key_and_step(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale).train(), inputs(network, 4)
    first = at(net, 5, key=1)(x)
    torch.rand(3)  # no generator is involved
    assert torch.equal(at(net, 5, key=1)(x), first)
    for step, key in ((6, 1), (5, 2)):
        assert (at(net, step, key)(x) - first).abs().max() > 1e-3
    other = converted(network, norm, scale).train()
    assert torch.equal(at(other, 5, key=1)(x), first)


@pytest.mark.parametrize("scale", RANDOM)
@torch.no_grad()
def test_a_draw_of_training_is_that_of_the_stream(scale: str) -> None:
    net, x = converted("linear", "weight", scale), inputs("linear", 6)
    layer = norm_layers(net)["0"]
    s, b = layer.scale.s.double(), layer.scale.b.double()
    inside = scale in ("bayes", "bayes_per_layer")
    mean = layer(x).double()
    z = mean / s - b if inside else (mean - b) / s
    rows = noise.rows(noise.derive(net.noise_key, TRAINING), torch.tensor(9), torch.arange(6))
    first, second = (noise.normal(rows, noise.columns(2 * layer.index + i, len(s))).double() for i in (0, 1))
    if inside:
        expected = (z + b) * (s + layer.scale.u.double().exp() * first)
    else:
        sigmas = (layer.scale.sigma_u, layer.scale.sigma_v) if scale == "noise" else (layer.scale.u.exp(),) * 2
        expected = (z + sigmas[1].double() * second) * (1 + sigmas[0].double() * first) * s + b
    torch.testing.assert_close(at(net.train(), 9)[0](x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("norm", ["weight", "analytic"])
@pytest.mark.parametrize("scale", ["noise", "bayes"])
@torch.no_grad()
def test_a_sample_draws_the_same_whatever_its_neighbours(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale).train(), inputs(network, 6)
    whole = at(net, 0)(x)
    for size in (1, 4):
        torch.testing.assert_close(at(net, 0)(x[:size]), whole[:size], rtol=1e-5, atol=1e-5)
    changed = torch.cat([x[:2], 7 * x[2:]])
    torch.testing.assert_close(at(net, 0)(changed)[:2], whole[:2], rtol=1e-5, atol=1e-5)


@everywhere
@torch.no_grad()
def test_the_step_advances_by_one_per_forward_in_training_only(network: str, norm: str, scale: str) -> None:
    net, x = converted(network, norm, scale), inputs(network, 4)
    for _ in range(2):
        net(x)
    assert net.noise_step == 0
    outputs = [net.train()(x) for _ in range(3)]
    assert net.noise_step == 3
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.equal(net.eval()(x), net(x))
    assert net.noise_step == 3


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_point_scales_draw_nothing(norm: str) -> None:
    net, x = converted("conv2d", norm, "point").train(), inputs("conv2d", 4)
    assert torch.equal(net(x), net(x))
    assert net.noise_step == 0


def steps(net: nn.Module, opt: torch.optim.Optimizer, count: int, first: int) -> list[Tensor]:
    """Training steps with data by step number."""
    elbo = bayesnorm.ELBO(net, n_data=100)
    losses = []
    for number in range(first, first + count):
        x = inputs("conv2d", 4, seed=number)
        loss = elbo(net(x), torch.arange(4)).total
        opt.zero_grad()
        loss.backward()
        opt.step()
        bayesnorm.project_(net)
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", RANDOM)
def test_a_network_loaded_from_its_state_dict_continues_bitwise(norm: str, scale: str) -> None:
    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        net = converted("conv2d", norm, scale, seed=seed).train()
        return net, torch.optim.SGD(bayesnorm.param_groups(net, lr=0.01), momentum=0.9)

    net, opt = make(0)
    steps(net, opt, 2, 0)
    saved = copy.deepcopy((net.state_dict(), opt.state_dict()))
    assert {"noise_key", "noise_step"} <= saved[0].keys()
    losses = steps(net, opt, 2, 2)
    other, other_opt = make(1)
    assert other.noise_key != net.noise_key
    other.load_state_dict(saved[0])
    other_opt.load_state_dict(saved[1])
    assert steps(other, other_opt, 2, 2) == losses
    for name, value in net.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


RANK = """
    import os, sys, torch, torch.distributed as dist
    torch.set_num_threads(1)
    from small_networks import outputs_of_rank

    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(outputs_of_rank(rank, 2), f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # the result is on disk; gloo's teardown aborts now and then
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")
def test_ranks_draw_as_one_process_would(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    paths = [str(Path(__file__).parent), str(Path(bayesnorm.__file__).parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, str(script), str(rank), str(tmp_path)] for rank in range(2)]
    running = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        one = outputs_of_rank(0, 1)
        for process in running:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name, outputs in one.items():
        for whole, a, b in zip(outputs, first[name], second[name], strict=True):
            together = a if name == "running" else torch.cat([a, b])
            torch.testing.assert_close(together, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_a_submodule_called_directly_computes_what_it_computes_inside(network: str, norm: str) -> None:
    net, x = converted(network, norm, "bayes"), inputs(network, 3)
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    handles = [
        module.register_forward_hook(lambda module, args, out: seen.__setitem__(module, (args[0].clone(), out)))
        for module in net.modules()
        if any(isinstance(inner, NormLayer) for inner in module.modules())
    ]
    net(x)
    for handle in handles:
        handle.remove()
    assert len(seen) > 3
    for module, (argument, expected) in seen.items():
        torch.testing.assert_close(module(argument), expected, rtol=0, atol=0)


class _Interrupted(BaseException):
    """Like KeyboardInterrupt, which torch's hooks do not see."""


@pytest.mark.parametrize("error", [RuntimeError, _Interrupted])
@pytest.mark.parametrize("then", ["network", "submodule", "layer"])
@pytest.mark.parametrize("training", [False, True])
def test_an_exception_inside_leaves_no_stale_statistics(error: type[BaseException], then: str, training: bool) -> None:
    net, x = converted("residual", "analytic", "bayes"), inputs("residual", 3)
    net.train(training)

    def fail(*_: object) -> None:
        raise error

    def change() -> None:
        with torch.no_grad():
            net.first.scale.b.add_(2.0)
            net.first.scale.s.mul_(3.0)

    handle = net.body[1].register_forward_hook(fail)
    with pytest.raises(error):
        net(x)
    handle.remove()
    change()
    fresh = converted("residual", "analytic", "bayes").train(training)
    with torch.no_grad():
        fresh.first.scale.b.add_(2.0)
        fresh.first.scale.s.mul_(3.0)
    at(fresh, int(net.noise_step))
    pick = {"network": lambda m: m, "submodule": lambda m: m.body, "layer": lambda m: m.body[1]}[then]
    out, expected = pick(net)(x), pick(fresh)(x)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize("training", [False, True])
def test_an_interrupted_network_can_be_copied(training: bool) -> None:
    net, x = converted("residual", "analytic", "bayes").train(training), inputs("residual", 3)

    def fail(*_: object) -> None:
        raise _Interrupted

    handle = net.body[1].register_forward_hook(fail)
    with pytest.raises(_Interrupted):
        net(x)
    handle.remove()
    twin = copy.deepcopy(net)
    again = pickle.loads(pickle.dumps(net))
    expected = net(x)
    assert torch.equal(twin(x), expected)
    assert torch.equal(again(x), expected)


class _Recorder(TorchDispatchMode):
    """Every operation with the sizes of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[torch.Size, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, Tensor)]
        self.calls.append((str(func), tuple(t.shape for t in tensors)))
        return out


@pytest.mark.parametrize("training", [False, True])
def test_the_analytic_pass_does_the_same_for_every_batch_and_image_size(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = bayesnorm.models.all_cnn(width=0.1).train(training)
    recorded: list[_Recorder] = []
    run = Program.run

    def recording(self: Program, *args: Any) -> Any:
        recorded.append(_Recorder())
        with recorded[-1]:
            return run(self, *args)

    monkeypatch.setattr(Program, "run", recording)
    totals = []
    for shape in ((1, 3, 32, 32), (9, 3, 32, 32), (2, 3, 48, 41)):
        with _Recorder() as everything:
            net(torch.randn(shape))
        totals.append(len(everything.calls))
    assert len(recorded) == 3  # once per forward
    assert len(recorded[0].calls) > 30
    assert recorded[0].calls == recorded[1].calls == recorded[2].calls
    assert len(set(totals)) == 1
    largest = max(size.numel() for _, sizes in recorded[0].calls for size in sizes)
    assert largest <= max(p.numel() for p in net.parameters())


def _scopes(monkeypatch: pytest.MonkeyPatch) -> list[Scope]:
    """Every scope that is opened from now on."""
    scopes: list[Scope] = []
    open_ = Runtime.open

    def keeping(self: Runtime, *args: Any) -> Scope:
        scopes.append(open_(self, *args))
        return scopes[-1]

    monkeypatch.setattr(Runtime, "open", keeping)
    return scopes


@torch.no_grad()
def test_draws_of_layers_steps_samples_and_purposes_are_uncorrelated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A correlation of 0.1 would be seen: the bound, 5 / sqrt(n), is below half of it."""
    width, batch = 64, 256
    net = bayesnorm.convert(
        nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width)), norm="weight", scale="noise"
    )
    net.noise_key.fill_(11)
    scopes = _scopes(monkeypatch)
    x = torch.randn(batch, 4)
    for _ in range(2):
        net.train()(x)
    with bayesnorm.sampling(net.eval()):
        for _ in range(2):
            net(x)
    blocks = [part.double() for scope in scopes for draws in scope.draws.values() for part in draws.chunk(2, 1)]
    assert len(blocks) == 16  # two layers, U and V, two steps, two purposes
    blocks += [blocks[0].roll(1, 0), blocks[0].roll(1, 1)]
    flat = torch.stack([block.flatten() for block in blocks])
    assert flat.shape[1] == batch * width
    bound = 5 / math.sqrt(batch * width)
    assert bound < 0.05
    correlation = torch.corrcoef(flat)
    off = correlation[~torch.eye(len(blocks), dtype=torch.bool)]
    assert off.abs().max() < bound
    assert (flat.mean(1).abs() < bound).all()
    dependent = torch.corrcoef(torch.stack([flat[0], flat[1] + 0.1 * flat[0]]))[0, 1]
    assert dependent > bound


def test_networks_converted_after_each_other_have_their_own_keys_and_the_seed_sets_them() -> None:
    def key(seed: int | None) -> int:
        if seed is not None:
            torch.manual_seed(seed)
        return int(bayesnorm.convert(nn.Sequential(nn.Linear(2, 2)), norm="weight", scale="bayes").noise_key)

    assert key(0) != key(None)
    assert key(0) == key(0)


class _Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, scale: float, x: Tensor | None = None, pair: list[Tensor] | None = None) -> Tensor:
        return self.layer(x if pair is None else pair[0]) * scale


@torch.no_grad()
def test_the_batch_is_found_among_the_arguments_or_named_as_missing() -> None:
    x = inputs("linear", 3)
    net = bayesnorm.convert(_Keyword(), norm="weight", scale="bayes", example=(1.0, x)).train()
    expected = at(net, 0)(1.0, x)
    assert torch.equal(at(net, 0)(1.0, x=x), expected)
    assert torch.equal(at(net, 0)(1.0, pair=[x]), expected)
    with pytest.raises(ValueError, match="no tensor among the arguments"):
        net(1.0)
    assert torch.equal(at(net, 0)(1.0, x), expected)


class _Merged(nn.Module):
    """Merges (or, for a fraction, splits) samples before its layer, as a network on several views of an object does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x: Tensor, size: int) -> Tensor:
        return self.layer(x.reshape(-1, size)[:, :5])


def _merging() -> nn.Module:
    torch.manual_seed(0)
    return bayesnorm.convert(_Merged(), norm="weight", scale="bayes", example=(torch.randn(4, 5), 5)).train()


@torch.no_grad()
def test_samples_that_are_split_share_the_draw_of_their_sample() -> None:
    net, x = _merging(), torch.randn(4, 10)
    x[:, 5:] = x[:, :5]
    out = net(x, 5)
    assert out.shape == (8, 4)
    torch.testing.assert_close(out[::2], out[1::2])
    torch.testing.assert_close(out[::2], at(net, 0)(x[:, :5], 5))


@torch.no_grad()
def test_a_batch_axis_that_shrinks_never_grows_back() -> None:
    net = _merging()
    with pytest.raises(ValueError, match="the batch axis must stay first"):
        net(torch.randn(6, 10), 15)
    assert net.eval()(torch.randn(6, 10), 20).shape == (3, 4)
    assert net.train()(torch.randn(6, 10), 20).shape == (3, 4)
