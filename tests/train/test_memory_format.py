"""The order in memory that a network is trained in."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_data import difference, made_up, state, trained
from torch import Tensor, nn

from bayesnorm.models import cell_net
from bayesnorm.train import memory_format
from bayesnorm.train.config import Config

CPU = torch.device("cpu")
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
    """The average as torch has it on CUDA (its issue 188344): wrong in channels last with padding."""
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


def test_filters_of_volumes_stay_as_they_are() -> None:
    net = nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Conv3d(1, 4, (1, 3, 3)), nn.Flatten(1, 2), *averaging(0, 4)[2:])
    order = net[1].weight.stride()
    trainer = trained(net, made_up(), Config(epochs=1, batch=8, lr=0.1), 0.1, 1)
    assert trainer.config.channels_last
    assert net[1].weight.stride() == order
    assert net[3].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 4])
def test_the_cell_network_averages_in_the_usual_order(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices with the fault. Maps of one channel too, contiguous in either order: the steps in memory tell them."""
    pool = next(module for module in cell_net().modules() if isinstance(module, nn.AvgPool2d))
    maps = torch.randn(2, 6, 6, channels).permute(0, 3, 1, 2).requires_grad_()
    weight = torch.linspace(-1, 1, 36).view(6, 6)
    (usual,) = torch.autograd.grad((pool(maps) * weight).sum(), maps)
    monkeypatch.setattr(F, "avg_pool2d", _faulty)
    monkeypatch.setattr(importlib.import_module("bayesnorm.models.cell_net"), "WRONG_AVERAGES", ("cpu",))
    (found,) = torch.autograd.grad((pool(maps) * weight).sum(), maps)
    assert maps.stride(1) == 1
    assert torch.equal(found, usual)
