"""Shape rules against the operations on fully expanded tensors: ``rule(m)`` expanded is ``op(m expanded)``."""

import pytest
import torch
import torch.nn.functional as F

from bayesnorm.moments.core import Moments, find
from bayesnorm.moments.shape import aligned, over_space

N = 3
PATTERNS = [(1, 6, 1, 1), (1, 6, 4, 4), (1, 1, 1, 1), (1, 1, 4, 1), (1, 6, 1, 4)]
SIZE = (N, 6, 4, 4)
INDEX = torch.tensor([2, 0, 5])
OPERATIONS = {
    "flatten": lambda x: torch.flatten(x, 1),
    "flatten_method": lambda x: x.flatten(2),
    "view": lambda x: x.view(N, -1),
    "view_tuple": lambda x: x.view((N, 6, 16)),
    "reshape_groups": lambda x: x.reshape(N, 2, 3, 4, 4),
    "reshape_space": lambda x: torch.reshape(x, (N, 6, 2, 2, 2, 2)),
    "reshape_mixed": lambda x: x.reshape(N, 12, 2, 4),
    "reshape_ones": lambda x: x.reshape(N, 1, 6, 1, 16, 1),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "permute_tuple": lambda x: torch.permute(x, (0, 3, 1, 2)),
    "transpose": lambda x: x.transpose(1, -1),
    "mT": lambda x: x.mT,
    "movedim": lambda x: torch.movedim(x, 1, -1),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "squeeze": lambda x: x.unsqueeze(2).squeeze(),
    "squeeze_dim": lambda x: x.unsqueeze(2).squeeze(2),
    "squeeze_not": lambda x: x.squeeze(1),
    "expand": lambda x: x.unsqueeze(2).expand(-1, -1, 5, -1, -1),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "roll": lambda x: torch.roll(x, (1, 2), dims=(1, 2)),
    "flip": lambda x: x.flip(1, 3),
    "slice": lambda x: x[:, 1:5:2],
    "slice_space": lambda x: x[..., ::2, 1:],
    "int": lambda x: x[:, 3],
    "int_last": lambda x: x[..., -1],
    "none": lambda x: x[:, None, ..., None],
    "list": lambda x: x[:, [0, 4]],
    "tensor": lambda x: x[:, INDEX, :, 1:],
    "mask": lambda x: x[:, torch.tensor([True, False, True, True, False, False])],
    "select": lambda x: x.select(2, 1),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "index_select": lambda x: torch.index_select(x, 1, INDEX),
    "chunk": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "chunk_uneven": lambda x: torch.cat(torch.chunk(x, 4, dim=1)[::-1], 1),
    "split": lambda x: torch.cat(torch.split(x, 4, dim=1)[::-1], 1),
    "split_sizes": lambda x: torch.cat(x.split([1, 2, 3], dim=1)[::-1], 1),
    "unbind": lambda x: torch.stack(x.unbind(1)[::2], 1),
    "cat_space": lambda x: torch.cat((x, x * 2), -1),
    "cat_constant": lambda x: torch.cat((x, torch.ones(N, 2, 4, 4)), 1),
    "cat_patterns": lambda x: torch.cat((x, x.mT), dim=1),
    "stack": lambda x: torch.stack((x, x.mT), dim=2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4], 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
    "channel_shuffle_views": lambda x: x.view(N, 2, 3, 4, 4).transpose(1, 2).contiguous().view(N, 6, 4, 4),
    "tokens": lambda x: x.flatten(2).transpose(1, 2),
}


class Replay(torch.overrides.TorchFunctionMode):
    """Runs the network on tensors and, next to it, each operation's rule on their moments."""

    def __init__(self):
        super().__init__()
        self.moments = {}
        self.alive = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.__self__.__name__ if getattr(func, "__name__", "") == "__get__" else func
        moved = torch.utils._pytree.tree_map(lambda leaf: self.moments.get(id(leaf), leaf), (args, kwargs))
        if any(isinstance(leaf, Moments) for leaf in torch.utils._pytree.tree_leaves(moved)):
            outs = [out] if isinstance(out, torch.Tensor) else out
            if isinstance(out, torch.Tensor | tuple | list) and not isinstance(out, torch.Size):
                result = find(name)(*moved[0], **moved[1])
                results = [result] if isinstance(out, torch.Tensor) else result
                for tensor, m in zip(outs, results, strict=True):
                    self.moments[id(tensor)] = m.sized(tensor.shape)
                    self.alive.append(tensor)
        return out


def replay(operation, m, x):
    with Replay() as mode:
        mode.moments[id(x)] = m
        out = operation(x)
        return mode.moments[id(out)], out


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_rule_is_the_operation_on_expanded_moments(name, pattern):
    mean = torch.randn(pattern, generator=torch.Generator().manual_seed(0))
    x = mean.expand(SIZE).contiguous()
    m, out = replay(OPERATIONS[name], Moments(mean, mean * 3 + 1, torch.Size(SIZE)), x)
    assert m.mean.dim() == out.dim()
    assert m.mean.shape[0] == 1
    torch.testing.assert_close(m.mean.expand_as(out), out)
    if "constant" not in name and "cat_space" not in name:
        torch.testing.assert_close(m.var.expand_as(out), out * 3 + 1)


@pytest.mark.parametrize(
    "name", ["view_tuple", "permute", "reshape_groups", "slice", "chunk", "pixel_unshuffle", "roll"]
)
def test_constant_axes_stay_constant(name):
    mean = torch.zeros(1, 6, 1, 1)
    m, _ = replay(OPERATIONS[name], Moments(mean, mean, torch.Size(SIZE)), mean.expand(SIZE).contiguous())
    assert m.mean.numel() <= 24


def test_merging_a_constant_axis_into_the_batch():
    mean = torch.randn(1, 1, 5)
    m, _ = replay(lambda x: x.reshape(-1, 5), Moments(mean, mean, torch.Size((N, 7, 5))), mean.expand(N, 7, 5))
    torch.testing.assert_close(m.mean, mean[0])


def test_merging_a_varying_axis_into_the_batch_names_the_sizes():
    mean = torch.randn(1, 7, 5)
    with pytest.raises(ValueError, match=r"\(3, 7, 5\) to \(21, 5\)"):
        replay(lambda x: x.reshape(-1, 5), Moments(mean, mean, torch.Size((N, 7, 5))), mean.expand(N, 7, 5))


def test_joining_batches_is_refused():
    mean = torch.randn(1, 5)
    with pytest.raises(ValueError, match="batch axis"):
        replay(lambda x: torch.cat((x, x)), Moments(mean, mean, torch.Size((N, 5))), mean.expand(N, 5))


def test_moments_of_lower_rank_are_aligned():
    mean, var, size = aligned(Moments(torch.zeros(1, 4), torch.ones(()), torch.Size((2, 3, 1, 4))))
    assert mean.shape == (1, 1, 1, 4)
    assert var.shape == (1, 1, 1, 1)
    assert size == (2, 3, 1, 4)


def test_over_space_is_the_law_of_a_random_position():
    mean, var = torch.randn(1, 2, 4, 1), torch.rand(1, 2, 1, 4)
    got = over_space(Moments(mean, var, torch.Size((5, 2, 4, 4))))
    second = (mean**2 + var).mean((2, 3), keepdim=True)
    torch.testing.assert_close(got[0], mean.mean((2, 3), keepdim=True))
    torch.testing.assert_close(got[1], second - got[0] ** 2)
