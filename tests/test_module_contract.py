"""What a torch module is trusted to do: save and resume, copy, pickle, compile, change dtype and layout."""

import copy
import io
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from architectures import CASES, randomize_
from members import (
    FULL,
    KINDS,
    MEMBERS,
    NORMS,
    build,
    distance,
    gradients,
    inputs,
    layers,
    loss_of,
    optimizer,
    train_steps,
)
from torch import Tensor, nn

import bayesnorm
from bayesnorm.layers import norm_layers

HERE = Path(__file__).parent
SRC = Path(bayesnorm.__file__).parents[1]
OPTIONS = {
    "batch": {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"},
    "weight": set(),
    "analytic": set(),
    "point": set(),
    "noise": {"scale.sigma_u", "scale.sigma_v"},
    "bayes": {"scale.u", "scale.offset"},
}


# State


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_state_dict_has_plain_names_and_all_that_matters(norm, scale):
    state = build(norm, scale).state_dict()
    of_layer = {"weight", "norm.center", "norm.spread", "scale.s", "scale.b"} | OPTIONS[norm] | OPTIONS[scale]
    of_root = {"noise_key", "noise_step"} | ({"input_mean", "input_var"} if norm == "analytic" else set())
    assert set(state) == of_root | {f"{layer}.{name}" for layer in (0, 3) for name in of_layer}
    assert all(isinstance(value, Tensor) for value in state.values())


@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_state_dict_is_complete_and_survives_weights_only_loading(norm, scale, kind):
    net, x = build(norm, scale, kind), inputs(kind)
    train_steps(net, optimizer(net), 0, 2, kind)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    other = build(norm, scale, kind, seed=5)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(copy.deepcopy(other).eval()(x), copy.deepcopy(net).eval()(x))
    assert torch.equal(other(x), net(x))


def test_new_process_continues_bitwise(tmp_path):
    """All members at once: save, new process, build, load, five steps = five more steps here."""
    kind, running = "conv2d", {}
    for norm, scale in MEMBERS:
        net = build(norm, scale, kind)
        opt = optimizer(net)
        train_steps(net, opt, 0, 3, kind)
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, tmp_path / f"{norm}-{scale}.pt")
        running[norm, scale] = (net, opt)
    code = (
        "import sys, torch; from pathlib import Path; import members; "
        f"torch.set_num_threads({torch.get_num_threads()}); members.resume(Path(sys.argv[1]), sys.argv[2])"
    )
    environment = {**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{HERE}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path), kind],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (norm, scale), (net, opt) in running.items():
        losses = train_steps(net, opt, 3, 5, kind)
        resumed = torch.load(tmp_path / f"{norm}-{scale}-resumed.pt")
        assert [a.item() for a in losses] == [b.item() for b in resumed["losses"]]
        assert len({loss.item() for loss in losses}) == 5
        assert set(resumed["net"]) == set(net.state_dict())
        assert all(torch.equal(value, resumed["net"][name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
@pytest.mark.parametrize("assign", [False, True])
def test_network_from_the_meta_device_computes_what_its_state_dict_says(norm, scale, assign):
    net, x = build(norm, scale), inputs()
    other = build(norm, scale, seed=5).to("meta")
    other = other if assign else other.to_empty(device="cpu")
    for layer in layers(other):
        assert layer.scale.columns is None or layer.columns.is_meta == assign
    other.load_state_dict(net.state_dict(), assign=assign)
    if not assign:  # else both have the same counters
        assert torch.equal(copy.deepcopy(other)(x), copy.deepcopy(net)(x))
    for mine, its in zip(layers(other), layers(net), strict=True):
        assert mine.scale.columns is None or torch.equal(mine.columns, its.columns)
    assert torch.equal(other.eval()(x), net.eval()(x))


@pytest.mark.parametrize("scale", ["noise", "bayes"])
def test_moving_a_network_to_where_it_is_keeps_the_columns_in_place(scale):
    net = build("weight", scale)
    before = [layer.columns for layer in layers(net)]
    net.to("cpu").float().share_memory()
    assert all(layer.columns is columns for layer, columns in zip(layers(net), before, strict=True))


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_loading_a_state_dict_changes_the_statistics_at_once(norm, scale):
    net, other, x = build(norm, scale).eval(), build(norm, scale, seed=5).eval(), inputs()
    before = net(x)
    net.load_state_dict(other.state_dict())
    assert torch.equal(net(x), other(x))
    assert distance(net(x), before) > 1e-2


# Copies


def copied(net: nn.Module) -> nn.Module:
    return copy.deepcopy(net)


def pickled(net: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(net))


def saved_whole(net: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("duplicate", [copied, pickled, saved_whole])
@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_copy_after_a_forward_computes_the_same_and_is_independent(norm, scale, duplicate):
    net, x = build(norm, scale), inputs()
    loss_of(net(x)).backward()
    twin = duplicate(net)
    expected = net(x)
    assert torch.equal(twin(x), expected)
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.1)
    y = twin(x)
    loss_of(y).backward()
    assert distance(y, expected) > 1e-2
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not {id(m) for m in net.modules()} & {id(m) for m in twin.modules()}


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_two_forwards_before_a_backward_add_their_gradients(norm, scale):
    net, first, second = build(norm, scale), inputs(seed=1), inputs(seed=2)
    alone = copy.deepcopy(net)
    loss_of(alone(first)).backward()
    loss_of(alone(second)).backward()
    together = loss_of(net(first))
    together = together + loss_of(net(second))
    together.backward()
    expected = gradients(alone)
    assert all(torch.allclose(g, expected[name], rtol=1e-4, atol=1e-5) for name, g in gradients(net).items())


# torch.compile


class Graphs:
    """The eager backend, counting."""

    def __init__(self):
        self.count = 0

    def __call__(self, module, example):
        self.count += 1
        return module.forward


def compiled_pair(net: nn.Module, backend: str | Graphs) -> tuple[nn.Module, nn.Module]:
    torch._dynamo.reset()
    return copy.deepcopy(net), torch.compile(net, fullgraph=True, backend=backend)


def check_compiled(net: nn.Module, x: Tensor, backend: str | Graphs, tolerance: float) -> bool:
    eager, compiled = compiled_pair(net, backend)
    for _ in range(2):  # the counter of the noise and the running statistics advance in the graph
        expected, y = eager(x), compiled(x)
        assert distance(y, expected) < tolerance
    loss_of(expected).backward()
    loss_of(y).backward()
    wanted = gradients(eager)
    largest = max(float(g.abs().max()) for g in wanted.values())
    for name, gradient in gradients(net).items():
        assert (gradient - wanted[name]).abs().max() < tolerance * largest, name
    for name, value in net.state_dict().items():
        assert torch.allclose(value.double(), eager.state_dict()[name].double(), rtol=tolerance, atol=tolerance), name
    with torch.no_grad():
        assert distance(compiled.eval()(x), eager.eval()(x)) < tolerance
    net.train()
    return True


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_compiles_without_a_graph_break_in_train_and_eval(norm, scale):
    graphs = Graphs()
    check_compiled(build(norm, scale), inputs(), graphs, 1e-5)
    assert graphs.count == 2  # train, eval


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "conv2d"])
def test_every_layer_type_compiles_without_a_graph_break(kind):
    assert check_compiled(build("analytic", "bayes", kind), inputs(kind), "eager", 1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own, which it hides
@pytest.mark.parametrize("name", ["resnet18", "conv1d", "preact_tiny", "functional_forms", "mlp_bn"])
def test_architectures_compile_without_a_graph_break(name):
    case = CASES[name]
    torch.manual_seed(0)
    net = bayesnorm.convert(
        randomize_(case.build(), corner=False), norm="analytic", scale="bayes", input_size=case.input_size
    )
    x = torch.randn(2, *case.input_size, generator=torch.Generator().manual_seed(0))
    graphs = Graphs()
    eager, compiled = compiled_pair(net, graphs)
    torch.manual_seed(1)  # dropout
    expected = eager.train()(x)
    torch.manual_seed(1)
    assert distance(compiled.train()(x), expected) < 1e-4
    with torch.no_grad():
        assert distance(compiled.eval()(x), eager.eval()(x)) < 1e-4
    assert graphs.count == 2  # statistics, noise and network in one; train, eval


@pytest.mark.parametrize("scale", ["noise", "bayes"])
def test_second_compiled_step_does_not_compile_again(scale):
    _, compiled = compiled_pair(build("analytic", scale), "eager")
    x = inputs()
    first = compiled(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        second, third = compiled(x), compiled(x)
    assert distance(second, first) > 1e-3
    assert distance(third, second) > 1e-3


needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None and shutil.which("clang++") is None,
    reason="inductor on the CPU needs a C++ compiler",
)


@needs_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor itself
@pytest.mark.parametrize(("norm", "scale", "kind"), [("analytic", "bayes", "conv2d"), ("batch", "noise", "linear")])
def test_inductor_computes_the_same(norm, scale, kind):
    assert check_compiled(build(norm, scale, kind), inputs(kind), "inductor", 1e-4)


# dtype, layout, printing


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """Dtypes of all floating-point results."""

    def __init__(self):
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, Tensor) and value.is_floating_point():
                self.dtypes.add(value.dtype)
        return out


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_autocast_keeps_statistics_and_kl_in_float32(norm, scale):
    net, x = build(norm, scale), inputs()
    reference = copy.deepcopy(net)
    expected = reference(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
        net.noise_step.zero_()
        runtime = layers(net)[0].opening.runtime
        with Watch() as watch:
            found = [
                value for layer in layers(net) for pair in runtime.statistics(layer.opening).values() for value in pair
            ]
            divergence = bayesnorm.kl(net)
    assert watch.dtypes <= {torch.float32, torch.float64}
    assert bool(found) == (norm == "analytic")
    assert all(value.dtype == torch.float32 for value in found)
    assert divergence.dtype == torch.float32
    assert torch.equal(divergence, bayesnorm.kl(net))
    assert y.isfinite().all()
    # bf16 rounds to 2^-9; two layers, each a sum over its taps whose errors are independent
    assert distance(y.float(), expected) < 0.05
    loss_of(y.float()).backward()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in net.parameters() if p.grad is not None
    )
    for name, buffer in net.named_buffers():
        assert buffer.dtype in (torch.float32, torch.int64), name


@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_network_in_bfloat16_is_finite_and_close(norm, scale, kind):
    net, x = build(norm, scale, kind), inputs(kind)
    rounded = copy.deepcopy(net).to(torch.bfloat16)
    expected, y = net(x), rounded(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()
    assert distance(y.float(), expected) < 0.1
    loss_of(y.float()).backward()
    assert all(p.grad.isfinite().all() for p in rounded.parameters() if p.grad is not None)
    assert rounded.noise_key.dtype == torch.int64
    assert distance(rounded.eval()(x.bfloat16()).float(), net.eval()(x)) < 0.1
    bayesnorm.project_(rounded)


@pytest.mark.parametrize("norm", NORMS)
def test_kl_of_a_bfloat16_network_is_computed_in_float32(norm):
    net = build(norm, "bayes").to(torch.bfloat16)
    exact = bayesnorm.kl(copy.deepcopy(net).double())
    value = bayesnorm.kl(net)
    assert value.dtype == torch.float32
    assert abs(value.double() - exact) < 1e-5 * exact


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_statistics_of_a_bfloat16_network_are_computed_in_float32(norm, scale):
    """Effective weights against those of the same (rounded) numbers in float64: only the last rounding is left."""
    net = build(norm, scale).to(torch.bfloat16)
    exact = copy.deepcopy(net).double()
    for layer, reference in zip(layers(net), layers(exact), strict=True):
        weight, bias = layer.plain()
        expected_weight, expected_bias = reference.plain()
        assert distance(weight.double(), expected_weight) < 2**-8
        assert distance(bias.double(), expected_bias) < 2**-7


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_float64_is_float64_throughout(norm, scale):
    net, x = build(norm, scale, dtype=torch.float64), inputs(dtype=torch.float64)
    single = build(norm, scale)
    y = net(x)
    assert y.dtype == torch.float64
    assert all(p.dtype == torch.float64 for p in net.parameters())
    assert all(b.dtype in (torch.float64, torch.int64) for b in net.buffers())
    assert distance(single(x.float()).double(), y) < 1e-4


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_channels_last_computes_the_same_and_stays(norm, scale):
    net, x = build(norm, scale), inputs()
    other = copy.deepcopy(net).to(memory_format=torch.channels_last)
    expected, y = net(x), other(x.to(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert distance(y, expected) < 1e-5
    loss_of(y).backward()
    loss_of(expected).backward()
    wanted = gradients(net)
    assert all(torch.allclose(g, wanted[name], rtol=1e-3, atol=1e-4) for name, g in gradients(other).items())
    bayesnorm.project_(other)
    bayesnorm.project_(net)
    assert distance(other.eval()(x), net.eval()(x)) < 1e-5


@pytest.mark.parametrize(("norm", "scale", "kind"), FULL)
def test_printing_mentions_channels_and_both_parts(norm, scale, kind):
    net = build(norm, scale, kind)
    for layer in norm_layers(net).values():
        text, channels = repr(layer), layer.scale.s.numel()
        assert text.startswith(type(layer).__name__)
        assert f"(norm): {type(layer.norm).__name__}({channels}" in text
        assert f"(scale): {type(layer.scale).__name__}({channels}" in text


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_train_flag_reaches_norm_and_scale(norm, scale):
    net = build(norm, scale)
    for flag in (False, True):
        net.train(flag)
        assert all(module.training == flag for module in net.modules())
