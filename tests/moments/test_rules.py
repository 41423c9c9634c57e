"""Each rule next to the operation itself: moments against a sample of the output, position by position."""

import functools
import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesnorm.moments import rules
from bayesnorm.moments.core import Moments, find

N = 10_000
C, SIDE = 3, 4
SIZE = (N, C, SIDE, SIDE)
tree = torch.utils._pytree


def normal(*size, seed=0):
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Replay(torch.overrides.TorchFunctionMode):
    """Runs each operation on tensors and its rule on their moments."""

    def __init__(self):
        super().__init__()
        self.moments = {}
        self.alive = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        moved = tree.tree_map(lambda leaf: self.moments.get(id(leaf), leaf), (args, kwargs))
        out = func(*args, **kwargs)
        active = func in rules.RANDOM or any(isinstance(leaf, Moments) for leaf in tree.tree_leaves(moved))
        if active and any(isinstance(leaf, torch.Tensor) for leaf in tree.tree_leaves(out)):
            rule = find(func)
            assert rule is not None, func
            single = isinstance(out, torch.Tensor)
            results = rule(*moved[0], **moved[1])
            for tensor, m in zip([out] if single else out, [results] if single else results, strict=True):
                self.keep(tensor, m)
        return out

    def keep(self, tensor, m):
        if m is not None:
            self.moments[id(tensor)] = m.sized(tensor.size())
            self.alive.append(tensor)


@functools.cache
def draw(seed=0):
    mean = torch.tensor([-0.7, 0.0, 1.2], dtype=torch.float64).view(1, C, 1, 1)
    var = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).view(1, C, 1, 1)
    return Moments(mean, var, torch.Size(SIZE)), mean + var.sqrt() * normal(*SIZE, seed=seed)


def replay(operation, inputs=1):
    """Moments and sample of the operation's output, for independent inputs."""
    torch.manual_seed(1234)
    pairs = [draw(seed) for seed in range(inputs)]
    with Replay() as mode:
        for m, x in pairs:
            mode.keep(x, m)
        out = operation(*(x for _, x in pairs))
        return mode.moments[id(out)], out


class Sample:
    """Mean, variance and their standard errors, over axis 0."""

    def __init__(self, y):
        squares = (y - y.mean(0)).square()
        self.n, self.mean, self.var = len(y), y.mean(0), squares.mean(0)
        self.spread = (squares.square().mean(0) - self.var.square()).clamp_min(0).sqrt()

    def agrees(self, mean, var, z=5.0):
        """Whether each moment is within z standard errors."""
        mean_ok = (self.mean - mean).abs() <= z * (var / self.n).sqrt() + 1e-9
        return mean_ok & ((self.var - var).abs() <= z * self.spread / math.sqrt(self.n) + 1e-9)

    def light_tailed(self):
        """Where the standard error of the variance is small against 21 % of it."""
        return self.spread < 2.3 * self.var


W1, W2, W3 = normal(4, C, 3, seed=3), normal(4, C, 3, 3, seed=3), normal(4, C, 2, 2, 2, seed=3)
WT = normal(C, 4, 3, 3, seed=3)
FLAT = normal(2, C * SIDE * SIDE, seed=7)
BIAS = normal(4, seed=4)
PER_CHANNEL = normal(C, 1, 1, seed=5)
MATRIX = normal(C, 5, seed=6)
SLOPES = torch.tensor([0.1, 0.5, -0.2], dtype=torch.float64)
MIDDLE = (slice(None), slice(None), slice(1, 2), slice(1, 2))

EXACT = {
    "relu": lambda x: torch.relu(x),
    "F.relu": lambda x: F.relu(x.clone(), inplace=True),
    "relu_": lambda x: x.clone().relu_(),
    "nn.ReLU6": nn.ReLU6(),
    "F.relu6": F.relu6,
    "leaky_relu": nn.LeakyReLU(0.2),
    "leaky_relu_": lambda x: F.leaky_relu_(x.clone(), 0.2),
    "prelu": lambda x: F.prelu(x, SLOPES),
    "elu": nn.ELU(0.7),
    "selu": nn.SELU(),
    "celu": nn.CELU(1.5),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(inplace=False),
    "mish": nn.Mish(),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardtanh": nn.Hardtanh(-0.5, 0.8),
    "sigmoid": nn.Sigmoid(),
    "x.sigmoid": lambda x: x.sigmoid(),
    "logsigmoid": nn.LogSigmoid(),
    "tanh": nn.Tanh(),
    "tanhshrink": nn.Tanhshrink(),
    "softplus": nn.Softplus(2.0),
    "abs": lambda x: abs(x),
    "exp": lambda x: torch.exp(x / 4),
    "sin": lambda x: x.sin(),
    "sin_wide": lambda x: torch.sin(9 * x),
    "cos": lambda x: torch.cos(2 * x),
    "clamp": lambda x: x.clamp(-0.5, 1.0),
    "clamp_min": lambda x: torch.clamp(x, min=0.2),
    "clip_max": lambda x: x.clip(max=0.2),
    "square": lambda x: x.square(),
    "pow": lambda x: x**2,
    "x*x": lambda x: x * x,
    "cube": lambda x: x.pow(3),
    "x+x": lambda x: x + x,
    "add": lambda x, y: x + y,
    "add_": lambda x, y: x.clone().add_(y, alpha=0.5),
    "iadd": lambda x, y: _inplace(x.clone(), y),
    "torch.add": lambda x, y: torch.add(x, y, alpha=-2),
    "sub": lambda x, y: x - y,
    "rsub": lambda x: 1 - x,
    "radd": lambda x: PER_CHANNEL + x,
    "rsub_tensor": lambda x: PER_CHANNEL - x,
    "neg": lambda x: -x,
    "scale": lambda x: 3 * x / 2,
    "scale_tensor": lambda x: x * PER_CHANNEL + PER_CHANNEL,
    "div_tensor": lambda x: torch.div(x, PER_CHANNEL),
    "mul": lambda x, y: x * y,
    "addcmul": lambda x, y: torch.addcmul(x, x.new_ones(1, C, 1, 1), y, value=0.3),
    "gate": lambda x, y: x * torch.sigmoid(y),
    "glu": lambda x, y: F.glu(torch.cat((x, y), 1), 1),
    "maximum": lambda x, y: torch.maximum(x, y),
    "torch.max": lambda x, y: torch.max(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "maximum_tensor": lambda x: torch.maximum(x, PER_CHANNEL.expand(1, C, 1, 1)),
    "cat": lambda x, y: torch.cat([x, F.relu(y)], 1),
    "narrow": lambda x: x.narrow(1, -2, 2),
    "stack_sum": lambda x, y: torch.stack([x, y]).sum(0),
    "conv1d": lambda x: F.conv1d(x.flatten(2), W1, BIAS),
    "conv2d": lambda x: F.conv2d(x, W2, BIAS),
    "conv2d_pad": lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1)), W2)[MIDDLE],
    "conv3d": lambda x: F.conv3d(x.view(N, C, 2, 2, 4), W3),
    "depthwise": lambda x: F.conv2d(x, W2[:C, :1], groups=C),
    "conv_transpose": lambda x: F.conv_transpose2d(x, WT, BIAS, padding=1)[MIDDLE],
    "linear": lambda x: F.linear(x.mean((2, 3)), MATRIX.T, None),
    "linear_tokens": lambda x: F.linear(x.flatten(2).transpose(1, 2), MATRIX.T),
    "linear_flat": lambda x: F.linear(torch.flatten(x, 1), FLAT),
    "matmul": lambda x: x.mean((2, 3)) @ MATRIX,
    "addmm": lambda x: torch.addmm(torch.ones(5, dtype=torch.float64), x.amin((2, 3)) * 0 + x[:, :, 0, 0], MATRIX),
    "einsum": lambda x: torch.einsum("nchw,cd->nd", x, MATRIX),
    "batch_norm": lambda x: F.batch_norm(x, None, None, BIAS[:C], PER_CHANNEL.flatten(), training=True, eps=1e-12),
    "avg_pool": nn.AvgPool2d(2),
    "avg_pool_divisor": lambda x: F.avg_pool2d(x, (2, 2), divisor_override=3),
    "adaptive_avg": nn.AdaptiveAvgPool2d(1),
    "adaptive_avg_uneven": lambda x: F.adaptive_avg_pool2d(x, (2, None)),
    "mean": lambda x: x.mean((2, 3), keepdim=True),
    "mean_channels": lambda x: torch.mean(x, dim=1),
    "sum": lambda x: x.sum(1, keepdim=True),
    "max_pool_pair": lambda x: F.max_pool2d(x, (1, 2)),
    "dropout": nn.Dropout(0.3),
    "dropout_eval": nn.Dropout(0.3).eval(),
    "dropout2d": nn.Dropout2d(0.3),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "alpha_dropout": nn.AlphaDropout(0.3),
    "stochastic_depth": lambda x, y: x + y * y.new_empty((N, 1, 1, 1)).bernoulli_(0.8) / 0.8,
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((N, 1, 1, 1), 0.8, dtype=torch.float64)),
    "noise": lambda x: x + 0.1 * torch.randn_like(x),
    "rand": lambda x: x * torch.rand(N, 1, 1, 1, dtype=x.dtype, device=x.device),
    "uniform_": lambda x: x * torch.empty(N, 1, 1, 1, dtype=x.dtype).uniform_(0.5, 2.0),
    "normal_": lambda x: x * x.new_empty(N, C, 1, 1).normal_(1.0, 0.5),
    "upsample": nn.Upsample(scale_factor=2),
    "zeros_like": lambda x: x + torch.zeros_like(x),
    "new_zeros": lambda x: torch.cat((x, x.new_zeros(N, 2, SIDE, SIDE)), 1),
    "casts": lambda x: x.to(torch.float64).contiguous().clone().detach().double().type_as(x),
    "pixel_shuffle": lambda x: F.pixel_shuffle(torch.cat((x, x[:, :1]), 1), 2),
    "shortcut": lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2), "constant", 0.5),
}
BINARY = {name for name, f in EXACT.items() if list(inspect.signature(f).parameters) == ["x", "y"]}


def _inplace(x, y):
    x += y
    x *= 2
    x -= 0.5
    x /= 3
    return x


@pytest.mark.parametrize("name", EXACT)
def test_monte_carlo(name):
    """Every position of the output within 5 standard errors; 10 % off in mean or std is seen."""
    m, y = replay(EXACT[name], 2 if name in BINARY else 1)
    assert m.mean.shape[0] == m.var.shape[0] == 1
    mean, var = m.mean[0].expand(y.shape[1:]), m.var[0].expand(y.shape[1:])
    sample = Sample(y)
    assert sample.agrees(mean, var).all()
    random = var > 1e-9
    assert not sample.agrees(mean + 0.1 * var.sqrt(), var)[random].any()
    assert not sample.agrees(mean, var * 1.21)[random & sample.light_tailed()].any()


CASTS = [
    lambda rule, x: rule(x, torch.float64),
    lambda rule, x: rule(x, "cpu", torch.float64),
    lambda rule, x: rule(x, dtype=torch.float64),
    lambda rule, x: rule(x, torch.zeros(1, dtype=torch.float64)),
    lambda rule, x: rule(x, tensor=torch.zeros(1, dtype=torch.float64)),
    lambda rule, x: rule(x, draw()[0]),
]


@pytest.mark.parametrize("cast", CASTS)
def test_a_cast_to_double_is_one_in_every_form(cast):
    x = Moments(torch.tensor([[-0.1, 2.0]]), torch.tensor([[0.3, 0.5]]), torch.Size((4, 2)))
    got = cast(find("to"), x)
    assert (got.mean.dtype, got.var.dtype) == (torch.float64, torch.float64)
    assert torch.equal(got.mean, x.mean.double())
    assert torch.equal(got.var, x.var.double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_no_cast_costs_statistics_their_precision(dtype, precision):
    x = Moments(torch.full((1, 2), 0.1, dtype=precision), torch.ones(1, 2, dtype=precision))
    for got in (find("to")(x, dtype), find("to")(x, dtype=dtype), find("type_as")(x, torch.zeros(1, dtype=dtype))):
        assert torch.equal(got.mean, x.mean)


def test_a_cast_uniform_variable_is_uniform():
    """``floor(keep + rand)`` is Bernoulli in double precision too."""
    x = Moments(torch.zeros(1, 2), torch.ones(1, 2), torch.Size((4, 2)))
    drawn = find("to")(find(torch.rand_like)(x), torch.float64)
    keep = find(torch.floor)(find(torch.add)(drawn, 0.8))
    torch.testing.assert_close(keep.mean, torch.full((1, 1), 0.8, dtype=torch.float64))
    torch.testing.assert_close(keep.var, torch.full((1, 1), 0.16, dtype=torch.float64))


def test_difference_with_itself_is_zero():
    m, _ = replay(lambda x: x - x)
    assert not m.mean.any()
    assert not m.var.any()


@pytest.mark.parametrize(
    ("operation", "mean_bound", "var_bound"),
    [
        (nn.MaxPool2d(2), 0.01, 0.08),
        (lambda x: F.max_pool2d(x, 3, 1, 1)[MIDDLE], 0.03, 0.18),
        (nn.AdaptiveMaxPool2d(1), 0.06, 0.32),
        (lambda x: x.amax((2, 3)), 0.06, 0.32),
        (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], 0.01, 0.08),
        (lambda x: x.flatten(2).max(dim=-1)[0], 0.06, 0.32),
    ],
    ids=["max_pool", "max_pool_3", "adaptive", "amax", "indices", "max"],
)
def test_maximum_over_many(operation, mean_bound, var_bound):
    """Mean within ``mean_bound`` input std, variance low by at most ``var_bound`` (plus 5 % of sampling)."""
    m, y = replay(operation)
    std = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).sqrt().view(1, C, *[1] * (y.dim() - 2))
    assert ((m.mean - y.mean(0, keepdim=True)).abs() < (mean_bound + 0.03) * std).all()
    ratio = m.var / y.var(0, keepdim=True)
    assert (ratio > 1 - var_bound - 0.05).all()
    assert (ratio < 1.05).all()


@pytest.mark.parametrize("operation", [lambda x: torch.softmax(x, 1), lambda x: F.softmax(x.flatten(2), dim=-1)])
def test_softmax_over_channels_and_over_identical_entries(operation):
    m, y = replay(operation)
    assert Sample(y).agrees(m.mean, m.var).all()


@pytest.mark.parametrize("affine", [True, False])
def test_normalizations_hand_on_bias_and_scale(affine):
    x = draw()[0]
    weight, bias = (BIAS[:C], PER_CHANNEL.flatten()) if affine else (None, None)
    expected = (bias, weight**2) if affine else (torch.zeros(1), torch.ones(1))
    shape = (1, -1, 1, 1)
    for m in (
        find(F.batch_norm)(x, torch.zeros(C), torch.ones(C), weight=weight, bias=bias, training=False),
        find(F.group_norm)(x, 1, weight=weight, bias=bias, eps=1e-5),
        find(F.instance_norm)(x, weight=weight, bias=bias, use_input_stats=True),
    ):
        torch.testing.assert_close(m.mean, expected[0].view(shape).double())
        torch.testing.assert_close(m.var, expected[1].view(shape).double())


def test_layer_norm_is_placed_on_the_last_axes():
    weight, bias = normal(SIDE, seed=8), normal(SIDE, seed=9)
    m, _ = replay(lambda x: F.layer_norm(x, (SIDE,), weight, bias))
    torch.testing.assert_close(m.mean, bias.view(1, 1, 1, SIDE))
    torch.testing.assert_close(m.var, weight.view(1, 1, 1, SIDE) ** 2)


def test_padding_of_what_has_only_a_variance_that_varies():
    weight = normal(SIDE, seed=8)
    m, y = replay(lambda x: F.pad(F.layer_norm(x, (SIDE,), weight), (1, 2)))
    expected = torch.cat((torch.zeros(1), weight**2, torch.zeros(2)))
    torch.testing.assert_close(m.var, expected.double().view(1, 1, 1, SIDE + 3))
    assert y.shape[-1] == SIDE + 3


def test_rms_norm_of_many_channels():
    """The root mean square over 512 entries varies by 3 %."""
    mean, var = normal(1, 512, seed=1), normal(1, 512, seed=2) ** 2
    m = find(F.rms_norm)(Moments(mean, var, torch.Size((4000, 512))), (512,), None, 0.0)
    y = F.rms_norm(mean + var.sqrt() * normal(4000, 512), (512,), None, 0.0)
    assert ((m.mean[0] - y.mean(0)).abs() < 5 * (m.var[0] / 4000).sqrt() + 0.01).all()
    assert ((m.var[0] / y.var(0) - 1).abs() < 0.15)[m.var[0] > 0.1].all()


def test_strided_transposed_convolution_mixes_phases():
    m, y = replay(lambda x: F.conv_transpose2d(x, WT, BIAS, stride=2, padding=1))
    inner = y[:, :, 2:6, 2:6].transpose(0, 1).flatten(1)
    torch.testing.assert_close(m.mean.flatten(), inner.mean(1), rtol=0.0, atol=0.05)
    torch.testing.assert_close(m.var.flatten(), inner.var(1), rtol=0.03, atol=0.0)


def test_random_functions_have_rules_or_are_refused():
    refused = {function for function in rules.RANDOM if find(function) is None}
    names = {function.__name__ for function in refused}
    assert names == {"randint", "randint_like", "normal", "randperm", "multinomial", "random_", "exponential_"}


def test_batch_reductions_and_quotients_are_refused():
    with pytest.raises(ValueError, match="batch axis"):
        replay(lambda x: x.mean())
    with pytest.raises(ValueError, match="quotient"):
        replay(lambda x, y: x / y, 2)
    with pytest.raises(ValueError, match="exponent"):
        replay(lambda x: x**0.5)


def small_network(m, weight, matrix):
    m = find(torch.conv2d)(m, weight, None, (1, 1), (1, 1), (1, 1), 1).sized(torch.Size((2, 4, 4, 4)))
    m = find(F.gelu)(find(F.leaky_relu)(m, negative_slope=0.1, inplace=True))
    m = find(F.max_pool2d)(m, 2).sized(torch.Size((2, 4, 2, 2)))
    m = find(torch.flatten)(m, 1).sized(torch.Size((2, 16)))
    m = find(F.softmax)(find(F.linear)(m, matrix).sized(torch.Size((2, 5))), 1)
    return m.mean, m.var


def test_rules_compile_and_pass_gradients_on():
    weight, matrix = (t.float().requires_grad_() for t in (W2, normal(5, 16, seed=1)))
    x = Moments(torch.zeros(1, C, 1, 1), torch.ones(1, C, 1, 1), torch.Size((2, C, 4, 4)))
    expected = small_network(x, weight, matrix)
    compiled = torch.compile(small_network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, weight, matrix), expected)
    gradients = torch.autograd.grad(expected[0].square().sum() + expected[1].sum(), (weight, matrix))
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)
