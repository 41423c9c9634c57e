"""Running statistics averaged anew: what torch's own function gives on torch's own batch norms."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import bayesnorm


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Conv2d(4, 2, 1))


def batches(pairs):
    generator = torch.Generator().manual_seed(0)
    made = [3 * torch.randn(8, 2, 6, 6, generator=generator) + 1 for _ in range(5)]
    return [(x, torch.zeros(8)) for x in made] if pairs else made


@pytest.mark.parametrize("pairs", [False, True])
def test_the_network_computes_what_torchs_own_does(pairs):
    plain = network().eval()
    net = bayesnorm.convert(plain, norm="batch", scale="point")
    x = batches(False)[0]
    update_bn(batches(pairs), plain)
    before = net(x)
    bayesnorm.update_bn(batches(pairs), net)
    assert not torch.allclose(before, plain(x), atol=0.1)
    assert torch.allclose(net(x), plain(x), atol=1e-5)
    assert net[0].norm.momentum == 0.3
    assert not any(module.training for module in net.modules())


def test_batches_of_the_training_before_do_not_count():
    plain = network().eval()
    net = bayesnorm.convert(plain, norm="batch", scale="point").train()
    for x in batches(False):
        net(5 * x + 1)
    update_bn(batches(False), plain)
    bayesnorm.update_bn(batches(False), net.eval())
    assert torch.allclose(net(x), plain(x), atol=1e-5)


def test_torchs_own_batch_norms_are_averaged_too():
    plain = network().eval()
    net = copy.deepcopy(plain)
    update_bn(batches(False), plain)
    bayesnorm.update_bn(batches(False), net)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), net.state_dict().values(), strict=True))


def test_mode_and_momentum_come_back_after_an_exception():
    net = bayesnorm.convert(network().eval(), norm="batch", scale="bayes")
    with pytest.raises(RuntimeError):
        bayesnorm.update_bn([torch.zeros(8, 3, 6, 6)], net)
    assert net[0].norm.momentum == 0.3
    assert not any(module.training for module in net.modules())


def test_a_network_without_running_statistics_is_left_alone():
    net = bayesnorm.convert(network().eval(), norm="weight", scale="bayes")
    before = copy.deepcopy(net.state_dict())
    bayesnorm.update_bn(batches(False), net)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
