"""Every network computes the same, gradients included, on every device and in both orders of memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from members import MEMBERS
from torch import Tensor, nn

from bayesnorm.models import all_cnn, cell_net, resnet18, unet

CASES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "all_cnn": (partial(all_cnn, padding="same", width=0.1), (3, 16, 16)),
    "all_cnn, not padded": (partial(all_cnn, padding="valid", width=0.1), (3, 32, 32)),
    "resnet18": (partial(resnet18, width=0.1), (3, 16, 16)),
    "resnet18, imagenet": (partial(resnet18, width=0.1, stem="imagenet"), (3, 64, 64)),
    "cell_net, leaky_relu": (partial(cell_net, activation="leaky_relu", width=0.5), (1, 14, 12)),
    "cell_net, softplus": (partial(cell_net, activation="softplus", width=0.25), (1, 14, 12)),
    "cell_net, softmax": (partial(cell_net, activation="softmax", width=0.5), (1, 14, 12)),
    "unet": (partial(unet, width=0.1), (1, 32, 32)),
}
METHODS = [(None, "point"), *MEMBERS]
CONTIGUOUS, LAST = torch.contiguous_format, torch.channels_last
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
PLACES = [("cpu", LAST), pytest.param("cuda", CONTIGUOUS, marks=cuda), pytest.param("cuda", LAST, marks=cuda)]


def computed(net: nn.Module, x: Tensor, device: str, form: torch.memory_format) -> list[Tensor]:
    """Output and gradients of a copy of the network in training mode, there."""
    there: Any = copy.deepcopy(net).to(device)
    there.to(memory_format=form)
    inputs = x.to(device).contiguous(memory_format=form).requires_grad_()
    output = there(inputs)
    weight = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).sin().view(output.shape).to(device)
    found = torch.autograd.grad((output * weight).sum(), [inputs, *there.parameters()])
    return [value.detach().cpu() for value in (output, *found)]


@pytest.mark.parametrize(("device", "form"), PLACES)
@pytest.mark.parametrize(("norm", "scale"), METHODS)
@pytest.mark.parametrize("case", CASES)
def test_the_same_everywhere(case: str, norm: str | None, scale: str, device: str, form: torch.memory_format) -> None:
    make, size = CASES[case]
    torch.manual_seed(0)
    net = make(norm, scale).double()
    x = torch.randn(4, *size, dtype=torch.float64)
    usual, found = computed(net, x, "cpu", CONTIGUOUS), computed(net, x, device, form)
    largest = max(float(value.abs().max()) for value in usual[1:])
    for a, b in zip(usual, found, strict=True):
        assert float((a - b).abs().max()) <= 1e-8 * max(largest, float(a.abs().max()))
