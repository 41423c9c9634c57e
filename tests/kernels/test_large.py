"""Convolutions of many taps and few channels against torch's own.

TRITON_INTERPRET=1 pytest tests/kernels
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, INTERPRETED, MARKS
from torch import nn

import bayesnorm
from bayesnorm.models import cell_net
from bayesnorm.train import Config
from bayesnorm.train.fused import large
from bayesnorm.train.fused.large import convolution, is_large, large_filters
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


@pytest.mark.parametrize(
    ("conv", "expected"),
    [
        (nn.Conv2d(4, 4, 9, padding=4), True),
        (nn.Conv2d(4, 4, 5, padding="same", bias=False), True),
        (nn.Conv2d(4, 4, 3, padding=1), False),
        (nn.Conv2d(4, 4, 9), False),
        (nn.Conv2d(4, 4, (9, 5), padding=(4, 2)), False),
        (nn.Conv2d(4, 4, 9, padding=4, stride=2), False),
        (nn.Conv2d(4, 4, 5, padding=4, dilation=2), False),
        (nn.Conv2d(4, 4, 9, padding=4, groups=2), False),
        (nn.Conv2d(4, 4, 9, padding=4, padding_mode="reflect"), False),
        (nn.Conv2d(4, 256, 9, padding=4), False),
        (nn.Conv1d(4, 4, 9, padding=4), False),
    ],
)
def test_which_layers_are_of_this_kind(conv, expected):
    assert is_large(conv) is expected


CUDA = torch.device("cuda")


@pytest.mark.parametrize("norm", [None, "batch", "weight", "analytic"])
def test_the_cell_network_computes_the_same_with_them(norm, monkeypatch):
    """In full precision; halves would be rounded differently in every layer."""
    monkeypatch.setattr(large, "convolution", partial(convolution, dtype=torch.float32))
    torch.manual_seed(0)
    x = made(2, 1, 12, 10)
    options = {"input_stats": bayesnorm.input_stats(x)} if norm == "analytic" else {}
    net = cell_net(norm, "point", "softplus", width=0.125, **options).to(DEVICE).train()
    layers = [module for module in net.modules() if is_large(module)]
    assert len(layers) == 10, "all but the 1x1"
    plain = net(x)
    with large_filters(net, Config(precision="bf16"), CUDA):
        assert not any(is_large(layer) for layer in layers), "each has been given the kernels"
        ours = net(x)
    assert all(is_large(layer) for layer in layers)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_they_are_taken_back_after_an_error():
    conv = nn.Conv2d(4, 4, 9, padding=4)
    with pytest.raises(ValueError, match="an image of 3 channels"), large_filters(conv, Config(precision="bf16"), CUDA):
        conv(made(1, 3, 5, 5))
    assert is_large(conv)


@pytest.mark.parametrize(("precision", "device"), [("fp32", "cuda"), ("tf32", "cuda"), ("bf16", "cpu")])
def test_elsewhere_everything_stays(precision, device):
    conv = nn.Conv2d(4, 4, 9, padding=4)
    with large_filters(conv, Config(precision=precision), torch.device(device)):
        assert is_large(conv)
