"""The order in memory that a network is trained in."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_data import ALONE, difference, made_up, state, trained
from torch import Tensor, nn

from bayesnorm.models import cell_net
from bayesnorm.train import memory_format
from bayesnorm.train.config import Config

CPU = torch.device("cpu")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
average = F.avg_pool2d


class _Shifted(torch.autograd.Function):
    """An average whose gradient is that of the windows one pixel up and to the left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return average(x, 3, 1, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return average(F.pad(grads[0], (2, 0, 2, 0)), 3, 1)


def _faulty(x: Tensor, kernel: int, stride: Any = None, padding: int = 0, *rest: Any, **others: Any) -> Tensor:
    """The average as torch has it on CUDA before its issue 188344 was closed: wrong in channels last with padding."""
    if padding and x.stride(1) == 1:
        found: Tensor = _Shifted.apply(x)  # type: ignore[no-untyped-call]
        return found
    return average(x, kernel, stride, padding, *rest, **others)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(F, "avg_pool2d", _faulty)
    memory_format.averages_are_right.cache_clear()
    yield
    memory_format.averages_are_right.cache_clear()


def averaging(padding: int = 1, channels: int = 4) -> nn.Module:
    torch.manual_seed(0)
    pool = nn.AvgPool2d(3, 1, padding)
    ending = [nn.Conv2d(channels, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1)]
    return nn.Sequential(nn.Conv2d(1, channels, 3), pool, *ending)


def gradient(net: nn.Module, x: Tensor, form: torch.memory_format) -> list[Tensor]:
    net = net.to(memory_format=form)  # type: ignore[call-overload]
    output = net(x.contiguous(memory_format=form))
    weight = torch.linspace(-1, 1, output.numel(), device=x.device).view(output.shape)
    return list(torch.autograd.grad((output * weight).sum(), list(net.parameters())))


def test_averages_are_right_where_they_are() -> None:
    assert memory_format.averages_are_right(CPU)


def test_a_fault_is_found(fault: None) -> None:
    assert not memory_format.averages_are_right(CPU)


@pytest.mark.parametrize("channels", [1, 4])
def test_with_the_fault_a_network_is_trained_in_the_usual_order(fault: None, channels: int) -> None:
    data, config = made_up(), Config(epochs=1, batch=8, lr=0.1)
    net = averaging(channels=channels)
    with pytest.warns(UserWarning, match="wrong gradients of padded averages") as told:
        trainer = trained(net, data, config, 0.1, 3)
    assert len(told) == 1
    assert not trainer.config.channels_last
    usual = averaging(channels=channels)
    trained(usual, data, Config(epochs=1, batch=8, lr=0.1, channels_last=False), 0.1, 3)
    assert difference(state(net), state(usual)) == 0


def test_with_the_fault_and_no_such_average_nothing_changes(fault: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = trained(averaging(padding=0), made_up(), Config(epochs=1, batch=8, lr=0.1), 0.1, 1)
    assert trainer.config.channels_last


def test_without_the_fault_nothing_changes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = trained(averaging(), made_up(), Config(epochs=1, batch=8, lr=0.1), 0.1, 1)
    assert trainer.config.channels_last
    assert trainer.world is ALONE


@pytest.mark.parametrize("width", [0.25, 0.5])
@pytest.mark.parametrize("device", DEVICES)
def test_the_cell_network_is_right_in_both_orders(device: str, width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = cell_net("analytic", "point", "softplus", width=width).double().to(device)
    x = torch.randn(2, 1, 12, 12, dtype=torch.float64, device=device)
    usual = gradient(net, x, torch.contiguous_format)
    monkeypatch.setattr(F, "avg_pool2d", _faulty)
    last = gradient(net, x, torch.channels_last)
    largest = max(float(a.abs().max()) for a in usual)
    for a, b in zip(usual, last, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12 * largest)


def test_a_single_channel_is_averaged_in_the_usual_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such maps are contiguous in either order, and the steps in memory say which it is."""
    pool = next(module for module in cell_net().modules() if isinstance(module, nn.AvgPool2d))
    maps = torch.randn(2, 6, 6, 1).permute(0, 3, 1, 2).requires_grad_()
    assert maps.is_contiguous()
    assert maps.stride(1) == 1
    weight = torch.linspace(-1, 1, 36).view(6, 6)
    (usual,) = torch.autograd.grad((pool(maps) * weight).sum(), maps)
    monkeypatch.setattr(F, "avg_pool2d", _faulty)
    (last,) = torch.autograd.grad((pool(maps) * weight).sum(), maps)
    assert torch.equal(usual, last)
