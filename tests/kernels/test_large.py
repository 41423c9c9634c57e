"""Convolutions of many taps and few channels against torch's own.

TRITON_INTERPRET=1 pytest tests/kernels
"""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, INTERPRETED, MARKS
from torch import nn

import bayesnorm
from bayesnorm.models import cell_net
from bayesnorm.train import Config
from bayesnorm.train.fused import convolution as kernels
from bayesnorm.train.fused import large, trial
from bayesnorm.train.fused.convolution import convolution
from bayesnorm.train.fused.large import is_large, large_filters
from bayesnorm.train.numerics import numerics

pytestmark = MARKS
HALF = torch.float16 if INTERPRETED else torch.bfloat16
"""The interpreter does not multiply bf16."""
SHAPES = [  # images, channels, outputs, height, width, taps
    (2, 1, 5, 9, 20, 9),
    (2, 4, 4, 7, 70, 9),
    (1, 8, 4, 10, 66, 9),
    (2, 16, 8, 6, 33, 9),
    (1, 24, 17, 5, 16, 5),
    (3, 3, 2, 1, 1, 7),
    (1, 64, 8, 4, 12, 9),
    (1, 1, 1, 1, 1, 5),
    (1, 2, 1, 2, 6, 5),
]


@pytest.fixture(autouse=True)
def exact():
    """Torch's products in full precision, on CUDA too."""
    with numerics(Config(), DEVICE):
        yield


def made(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE)


def gradients(y, leaves):
    return torch.autograd.grad(y, leaves, made(*y.shape).to(y.dtype))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("images", "channels", "outputs", "height", "width", "taps"), SHAPES)
def test_response_and_gradients_are_those_of_torch(images, channels, outputs, height, width, taps, biased):
    """Sums of fp32 numbers in another order: the rounding errors of ``terms`` of them add up to at most a few eps."""
    x, weight, bias = made(images, channels, height, width), made(outputs, channels, taps, taps), made(outputs)
    leaves = [leaf.requires_grad_() for leaf in ((x, weight, bias) if biased else (x, weight))]
    ours = convolution(x, weight, bias if biased else None, torch.float32)
    theirs = F.conv2d(x, weight, bias if biased else None, padding=taps // 2)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    for got, expected, terms in [
        (ours, theirs, taps**2 * channels),
        *zip(
            gradients(ours, leaves),
            gradients(theirs, leaves),
            [taps**2 * outputs, images * height * width, images * height * width],
            strict=False,
        ),
    ]:
        assert got.shape == expected.shape
        # terms are products of standard normals: the sum has std sqrt(terms), each rounding at most eps/2 of a partial
        # sum; over `terms` random roundings sqrt(terms) * eps/2 * sqrt(terms), and room for six standard deviations
        torch.testing.assert_close(got, expected, rtol=0, atol=6 * terms * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize(("images", "height"), [(2, 5), (1, 11)])
def test_a_part_of_a_weights_gradient_has_several_rows(images, height, parts, monkeypatch):
    """Ten rows or eleven in one part, in two and in seven: the last has fewer, or goes from one image to the next."""
    monkeypatch.setattr(kernels, "PARTS", parts)
    x, weight = made(images, 2, height, 70), made(3, 2, 5, 5).requires_grad_()
    got = gradients(convolution(x, weight, None, torch.float32), (weight,))[0]
    expected = gradients(F.conv2d(x, weight, padding=2), (weight,))[0]
    torch.testing.assert_close(got, expected, rtol=0, atol=6 * x.numel() / 2 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("width", [1, 2, 6, 20])
@pytest.mark.parametrize(("channels", "taps"), [(1, 5), (1, 7), (1, 9), (2, 5), (3, 5), (7, 5)])
def test_what_is_behind_the_image_does_not_count(channels, taps, width, monkeypatch):
    """Its memory goes on with NaN, which a product with zero would keep."""

    def followed(x, taps, framed=kernels._framed):
        inside = framed(x, taps)
        room = torch.full((inside.numel() + 1000,), float("nan"), device=DEVICE)
        room[: inside.numel()] = inside.flatten()
        return room[: inside.numel()].view(inside.shape)

    monkeypatch.setattr(kernels, "_framed", followed)
    x, weight = made(1, channels, 2, width).requires_grad_(), made(1, channels, taps, taps).requires_grad_()
    y = convolution(x, weight, None, torch.float32)
    assert all(t.isfinite().all() for t in (y, *gradients(y, (x, weight))))


def test_a_bias_may_have_strides():
    x, weight, wide = made(1, 2, 5, 9), made(3, 2, 5, 5), made(6)
    for bias in (wide[::2], wide[:1].expand(3)):
        expected = F.conv2d(x, weight, bias, padding=2)
        torch.testing.assert_close(convolution(x, weight, bias, torch.float32), expected, rtol=1e-4, atol=1e-4)


def test_no_images_have_no_gradient():
    x, weight = made(0, 2, 5, 9).requires_grad_(), made(3, 2, 5, 5).requires_grad_()
    y = convolution(x, weight, None, torch.float32)
    assert y.shape == (0, 3, 5, 9)
    assert [t.abs().sum().item() for t in gradients(y, (x, weight))] == [0, 0]


def test_a_gradient_of_a_gradient_is_refused():
    x, weight = made(1, 2, 5, 9).requires_grad_(), made(3, 2, 5, 5).requires_grad_()
    total = convolution(x, weight, None, torch.float32).sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(total, x, create_graph=True)


def test_half_precision_rounds_factors_and_result_only():
    """Products of halves are exact in fp32, so all that differs from fp32 on rounded inputs is the last rounding."""
    x, weight = made(1, 4, 5, 20), made(6, 4, 9, 9)
    halves = [t.to(HALF).float() for t in (x, weight)]
    ours = convolution(x, weight, None, HALF)
    assert ours.dtype == HALF
    expected = convolution(*halves, None, torch.float32)
    torch.testing.assert_close(ours.float(), expected, rtol=torch.finfo(HALF).eps, atol=1e-4)


def test_gradients_have_the_types_of_what_they_are_of():
    x, weight, bias = (t.requires_grad_() for t in (made(1, 2, 5, 9).to(HALF), made(3, 2, 5, 5), made(3)))
    found = gradients(convolution(x, weight, bias, HALF), (x, weight, bias))
    assert [t.dtype for t in found] == [HALF, torch.float32, torch.float32]
    only = gradients(convolution(x.detach(), weight, None, HALF), (weight,))
    assert torch.equal(only[0], found[1]), "the gradient of the weight is the same whether or not that of x is wanted"


def test_parts_add_up_to_the_same_bits():
    x, weight = made(1, 4, 40, 20), made(3, 4, 5, 5).requires_grad_()
    first, again = (gradients(convolution(x, weight, None, HALF), (weight,))[0] for _ in range(2))
    assert torch.equal(first, again)


class Own(nn.Conv2d):
    """A convolution that is more than one."""

    def _conv_forward(self, *args):
        return 2 * super()._conv_forward(*args)


@pytest.mark.parametrize(
    ("conv", "expected"),
    [
        (nn.Conv2d(4, 4, 9, padding=4), True),
        (nn.Conv2d(4, 4, 11, padding="same", bias=False), True),
        (nn.Conv2d(4, 4, 7, padding=3), False),
        (Own(4, 4, 9, padding=4), False),
        (nn.Conv2d(4, 4, 9), False),
        (nn.Conv2d(4, 4, (9, 11), padding=(4, 5)), False),
        (nn.Conv2d(4, 4, 9, padding=4, stride=2), False),
        (nn.Conv2d(4, 4, 9, padding=8, dilation=2), False),
        (nn.Conv2d(4, 4, 9, padding=4, groups=2), False),
        (nn.Conv2d(4, 4, 9, padding=4, padding_mode="reflect"), False),
        (nn.Conv2d(4, 65, 9, padding=4), False),
        (nn.Conv1d(4, 4, 9, padding=4), False),
    ],
)
def test_which_layers_are_of_this_kind(conv, expected):
    assert is_large(conv) is expected


CUDA = torch.device("cuda")
BF16 = Config(precision="bf16")


@pytest.fixture
def lent(monkeypatch):
    """As on a device where they work, in full precision: halves would be rounded differently in every layer."""
    monkeypatch.setattr(large, "works", lambda device: True)
    monkeypatch.setattr(large, "_halved", lambda kind: True)
    for module in (large, trial):
        monkeypatch.setattr(module, "convolution", partial(convolution, dtype=torch.float32))
    trial.agrees.cache_clear()
    yield monkeypatch
    trial.agrees.cache_clear()


@pytest.mark.parametrize("norm", [None, "batch", "weight", "analytic"])
def test_the_cell_network_computes_the_same_with_them(norm, lent):
    torch.manual_seed(0)
    x = made(2, 1, 12, 10)
    options = {"input_stats": bayesnorm.input_stats(x)} if norm == "analytic" else {}
    net = cell_net(norm, "point", "softplus", width=0.125, **options).to(DEVICE).train()
    layers = [module for module in net.modules() if is_large(module)]
    assert len(layers) == 10, "all but the 1x1"
    plain = net(x)
    with large_filters(net, BF16, CUDA):
        assert not any(is_large(layer) for layer in layers), "each has been given the kernels"
        ours = net(x)
    assert all(is_large(layer) for layer in layers)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_autocast_and_in_double_precision_torch_computes(dtype, lent):
    def never(*args):
        raise AssertionError

    lent.setattr(large, "convolution", never)
    lent.setattr(large, "_halved", lambda kind: dtype == torch.float64)
    conv, x = nn.Conv2d(2, 3, 9, padding=4, dtype=dtype, device=DEVICE), made(1, 2, 5, 9).to(dtype)
    with large_filters(conv, BF16, CUDA):
        ours = conv(x)
    assert torch.equal(ours, conv(x))


def test_autocast_is_seen():
    kind = DEVICE.type
    assert not large._halved(kind)
    for dtype, expected in ((torch.bfloat16, True), (torch.float16, False)):
        with torch.autocast(kind, dtype=dtype):
            assert large._halved(kind) is expected
            with torch.autocast(kind, enabled=False):
                assert not large._halved(kind)


def test_they_are_taken_back_after_an_error(lent):
    conv = nn.Conv2d(4, 4, 9, padding=4).to(DEVICE)
    with pytest.raises(ValueError, match="an image of 3 channels"), large_filters(conv, BF16, CUDA):
        conv(made(1, 3, 5, 5))
    assert is_large(conv)


@pytest.mark.parametrize(("precision", "device"), [("fp32", "cuda"), ("tf32", "cuda"), ("bf16", "cpu")])
def test_elsewhere_everything_stays(precision, device, lent):
    conv = nn.Conv2d(4, 4, 9, padding=4)
    with large_filters(conv, Config(precision=precision), torch.device(device)):
        assert is_large(conv)


LAYERS = [(1, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16), (16, 8), (8, 8), (8, 4), (4, 4)]
"""Channels and outputs of the cell network."""


@pytest.mark.parametrize(("channels", "outputs"), LAYERS)
def test_the_layers_of_the_cell_network_in_half_precision(channels, outputs):
    """In the tiles that images of 512 x 512 get; a device computes with them whole, the interpreter with three rows."""
    images, height, width = (1, 3, 130) if INTERPRETED else (2, 512, 512)
    x, weight = made(images, channels, height, width).to(HALF), made(outputs, channels, 9, 9).to(HALF)
    leaves = (x.float().requires_grad_(), weight.float().requires_grad_())
    ours, theirs = convolution(*leaves, None, HALF), F.conv2d(*leaves, padding=4)
    for got, expected in [(ours, theirs), *zip(gradients(ours, leaves), gradients(theirs, leaves), strict=True)]:
        # One rounding of the result, and one of the gradient that comes in, each of at most eps/2 relative.
        assert (got.float() - expected).norm() <= torch.finfo(HALF).eps * expected.norm()


@pytest.mark.parametrize("part", ["response", "gradient of the input", "gradient of the weight"])
def test_where_they_are_not_those_of_torch_torch_computes_and_a_warning_says_so(part, lent):
    def wrong(x, weight, bias=None):
        factor = torch.tensor(1.1)
        y = convolution(
            *(
                t + (factor - 1) * (t - t.detach()) if part.endswith(name) else t
                for name, t in (("input", x), ("weight", weight))
            ),
            bias,
            torch.float32,
        )
        return y * factor if part == "response" else y

    for module in (large, trial):
        lent.setattr(module, "convolution", wrong)
    conv, x = nn.Conv2d(2, 3, 9, padding=4, device=DEVICE), made(1, 2, 5, 9)
    generator = torch.get_rng_state()
    with large_filters(conv, BF16, CUDA), pytest.warns(UserWarning, match=rf"{part} 0\.[01].*report"):
        ours = conv(x)
    assert torch.equal(ours, conv(x))
    assert torch.equal(torch.get_rng_state(), generator)
    with large_filters(conv, BF16, CUDA):
        assert torch.equal(conv(x), ours), "told once"


def test_where_they_agree_nothing_is_said(lent):
    conv, x = nn.Conv2d(2, 3, 9, padding=4, device=DEVICE), made(1, 2, 5, 9)
    with large_filters(conv, BF16, CUDA), warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = conv(x)
    assert trial.agrees(x.device, x.shape, conv.weight.shape)
    assert ours.is_contiguous(memory_format=torch.channels_last), "it is ours"


def test_where_triton_fails_torch_computes_and_a_warning_says_why(monkeypatch):
    def fails(*args):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(trial, "convolution", fails)
    trial.works.cache_clear()
    with pytest.warns(UserWarning, match="torch's, as Triton fails: no C compiler"):
        assert not trial.works(DEVICE)
    monkeypatch.setattr(trial, "convolution", partial(convolution, dtype=torch.float32))
    trial.works.cache_clear()
    assert trial.works(DEVICE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    trial.works.cache_clear()
    assert not trial.works(DEVICE)
    trial.works.cache_clear()
