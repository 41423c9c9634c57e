"""Activation checkpointing: a block that a backward pass repeats draws what it drew, so gradients are the same."""

import copy

import pytest
import torch
from architectures import randomize_
from members import INPUT_STATS, MEMBERS, distance, gradients, inputs, loss_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bayesnorm
from bayesnorm import _repeats

REENTRANT = pytest.mark.parametrize("reentrant", [True, False])
RANDOM = [(norm, scale) for norm, scale in MEMBERS if scale != "point"]


def same_gradients(net: nn.Module, plain: nn.Module) -> bool:
    wanted = gradients(plain)
    return all(torch.allclose(g, wanted[name], rtol=1e-8, atol=1e-10) for name, g in gradients(net).items())


class Blocks(nn.Module):
    """Two blocks, the first one checkpointed if asked for."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        )
        self.head = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2))
        self.reentrant: bool | None = None
        self.apart = False

    def layers(self, x: Tensor) -> Tensor:
        """The block as a function: its layers are repeated one by one."""
        for layer in self.block:
            x = layer(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        block = self.layers if self.apart else self.block
        x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def blocks(norm: str, scale: str) -> nn.Module:
    torch.manual_seed(0)
    plain = randomize_(Blocks(), corner=False).double()
    return bayesnorm.convert(plain, norm=norm, scale=scale, input_stats=INPUT_STATS).train()


@REENTRANT
@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_checkpointed_block_has_the_same_gradients(norm, scale, reentrant):
    net, x = blocks(norm, scale), inputs(dtype=torch.float64)
    plain = copy.deepcopy(net)
    net.reentrant = reentrant
    for _ in range(2):
        y, expected = net(x), plain(x)
        assert distance(y, expected) < 1e-12
        loss_of(y).backward()
        loss_of(expected).backward()
    assert torch.equal(net.noise_step, plain.noise_step)
    assert same_gradients(net, plain)


@REENTRANT
@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_checkpointed_whole_network_has_the_same_gradients(norm, scale, reentrant):
    net, x = blocks(norm, scale), inputs(dtype=torch.float64).requires_grad_()
    plain, z = copy.deepcopy(net), x.detach().clone().requires_grad_()
    loss_of(checkpoint(net, x, use_reentrant=reentrant)).backward()
    loss_of(plain(z)).backward()
    assert distance(x.grad, z.grad) < 1e-10
    assert same_gradients(net, plain)


@REENTRANT
@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_two_checkpointed_forwards_before_a_backward_repeat_their_own_noise(norm, scale, reentrant):
    net, first, second = blocks(norm, scale), *(inputs(dtype=torch.float64, seed=seed) for seed in (1, 2))
    plain = copy.deepcopy(net)
    net.reentrant = reentrant
    (loss_of(net(first)) + loss_of(net(second))).backward()
    (loss_of(plain(first)) + loss_of(plain(second))).backward()
    assert same_gradients(net, plain)


@REENTRANT
@pytest.mark.parametrize(("norm", "scale"), RANDOM)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first", "last"])
def test_two_calls_with_one_batch_repeat_their_own_noise(norm, scale, reentrant, order):
    net, x = blocks(norm, scale), inputs(dtype=torch.float64)
    plain = copy.deepcopy(net)
    net.reentrant = reentrant
    for some in (net, plain):
        losses = [loss_of(some(x)) for _ in range(2)]
        for i in order:
            losses[i].backward()
    assert same_gradients(net, plain)


class Frames(nn.Module):
    """A batch of sequences, flattened into one of frames before a checkpointed block."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.head = nn.Conv2d(4, 2, 1)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        frames = x.flatten(0, 1)
        h = checkpoint(self.block, frames, use_reentrant=False) if self.checkpointed else self.block(frames)
        return self.head(h).mean((2, 3)).unflatten(0, x.shape[:2]).mean(1)


@pytest.mark.parametrize("norm", ["weight", "analytic"])
def test_a_batch_that_grew_before_the_block(norm):
    torch.manual_seed(0)
    net = Frames(True).double()
    net = bayesnorm.convert(net, norm=norm, scale=bayesnorm.Bayes(sigma_init=0.5), input_size=(4, 3, 8, 8)).train()
    plain = copy.deepcopy(net)
    plain.checkpointed = False
    x = torch.randn(5, 4, 3, 8, 8, dtype=torch.float64)
    loss_of(net(x)).backward()
    loss_of(plain(x)).backward()
    assert same_gradients(net, plain)


@REENTRANT
@pytest.mark.parametrize("inside", [True, False])
def test_a_backward_pass_of_sampled_scales(reentrant, inside):
    net = blocks("weight", "bayes").eval()
    plain = copy.deepcopy(net)
    net.reentrant = reentrant
    for some in (net, plain):
        with bayesnorm.sampling(some):
            loss = sum(loss_of(some(inputs(dtype=torch.float64))) for _ in range(2))
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
    assert same_gradients(net, plain)


@REENTRANT
@pytest.mark.parametrize(("norm", "scale"), RANDOM)
def test_a_function_of_several_layers(norm, scale, reentrant):
    net = blocks(norm, scale)
    plain = copy.deepcopy(net)
    net.reentrant, net.apart = reentrant, True
    for some in (net, plain):
        sum(loss_of(some(inputs(dtype=torch.float64, seed=seed))) for seed in (1, 2)).backward()
    assert same_gradients(net, plain)


@REENTRANT
def test_two_whole_calls_in_one_checkpoint(reentrant):
    net = blocks("analytic", "bayes")
    plain = copy.deepcopy(net)
    first, second = (inputs(dtype=torch.float64, seed=seed).requires_grad_() for seed in (1, 2))
    loss_of(checkpoint(lambda a, b: net(a) - net(b), first, second, use_reentrant=reentrant)).backward()
    loss_of(plain(first) - plain(second)).backward()
    assert same_gradients(net, plain)


def test_noise_that_is_no_longer_known_is_refused(monkeypatch):
    monkeypatch.setattr(_repeats, "CALLS", 3)
    net, x = blocks("weight", "bayes"), inputs(dtype=torch.float64)
    net.reentrant = False
    loss = loss_of(net(x))
    for _ in range(3):
        loss_of(net(x))
    with pytest.raises(RuntimeError, match=r"after more than 3 other calls .* call backward\(\) more often"):
        loss.backward()
