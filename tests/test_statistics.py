"""Statistics of data: of inputs and of their patches."""

import pytest
import torch
from torch import Tensor, nn

import bayesnorm
from bayesnorm._statistics import patch_stats


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 5), (7, 3, 4, 5), (5, 2, 3, 4, 3)])
@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_mean_and_variance_do_not_depend_on_the_chunks(shape: tuple[int, ...], chunk: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 50
    mean, var = bayesnorm.input_stats(x, chunk=chunk)
    rows = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean.double(), rows.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.double(), rows.var(1, correction=0), rtol=1e-6, atol=0)


def test_a_large_mean_does_not_cancel() -> None:
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) + 1e5
    var = bayesnorm.input_stats(x)[1]
    torch.testing.assert_close(var.double(), x.double().var(0, correction=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.uint8, torch.float32),
        (torch.int64, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_the_dtype_is_float32_or_better_and_integers_are_taken_at_their_values(
    dtype: torch.dtype, result: torch.dtype
) -> None:
    x = torch.arange(24).reshape(4, 2, 3).to(dtype)
    mean, var = bayesnorm.input_stats(x)
    assert mean.dtype == var.dtype == result
    torch.testing.assert_close(mean.double(), torch.tensor([10.0, 13.0], dtype=torch.float64), rtol=1e-2, atol=0)
    expected = x.double().transpose(0, 1).flatten(1).var(1, correction=0)
    torch.testing.assert_close(var.double(), expected, rtol=1e-2, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_data_that_is_not_finite_is_refused(bad: float) -> None:
    x = torch.zeros(4, 2)
    x[3, 1] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        bayesnorm.input_stats(x)


def test_a_variance_that_half_precision_cannot_hold_is_right_and_one_that_the_dtype_cannot_is_refused() -> None:
    x = torch.tensor([[0.0], [1024.0]])
    assert bayesnorm.input_stats(x.half())[1] == 512**2
    with pytest.raises(ValueError, match=r"variance of the data, 1e\+60, is beyond torch.float32"):
        bayesnorm.input_stats(torch.tensor([[-1e30], [1e30]]))


@pytest.mark.parametrize("x", [torch.zeros(3), torch.zeros(0, 3), torch.zeros(2, 0), torch.tensor(1.0)])
def test_data_without_values_or_channels_is_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match="shape"):
        bayesnorm.input_stats(x)


def test_a_chunk_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk"):
        bayesnorm.input_stats(torch.zeros(4, 2), chunk=0)


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv1d(2, 5, 3, dilation=2), (2, 11)),
        (nn.Conv2d(3, 6, 3), (3, 9, 8)),
        (nn.Conv2d(3, 6, (3, 2), stride=(2, 1)), (3, 9, 8)),
        (nn.Conv3d(2, 3, 2), (2, 4, 5, 3)),
        (nn.Linear(6, 4), (6,)),
    ],
)
def test_patch_statistics_give_the_exact_mean_and_variance_of_every_filter(
    layer: nn.Module, size: tuple[int, ...]
) -> None:
    x = torch.randn(70, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(-1) + 1
    layer = layer.double()
    mean, cov = patch_stats([x], layer)
    weight = layer.weight.detach().flatten(1)
    with torch.no_grad():
        response = layer(x).transpose(0, 1).flatten(1) - layer.bias[:, None]
    torch.testing.assert_close(weight @ mean, response.mean(1))
    torch.testing.assert_close(((weight @ cov) * weight).sum(1), response.var(1, correction=0))
