"""The noise stream inside kernels is the one of ``bayesnorm.noise``."""

import pytest
import torch
from interpreted import DEVICE, MARKS

from bayesnorm import noise

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from bayesnorm.train.fused._draw import normal, row_hash, uniform  # noqa: E402

pytestmark = MARKS


@triton.jit
def draw(key, step, columns, hashes, flat, bell, COUNT: tl.constexpr):  # noqa: N803
    n = tl.program_id(0)
    j = tl.arange(0, COUNT)
    row = row_hash(tl.load(key), tl.load(step), n)
    tl.store(hashes + n, row.to(tl.int64, bitcast=True))
    tl.store(flat + n * COUNT + j, uniform(row, tl.load(columns + j)))
    tl.store(bell + n * COUNT + j, normal(row, tl.load(columns + j)))


def test_hashes_uniform_and_normal_numbers():
    """Hashes and uniform numbers to the bit; normal ones to a rounding of float32."""
    rows, count = 16, 1024
    key, step = torch.tensor(-7, device=DEVICE), torch.tensor(123456789012, device=DEVICE)
    columns = noise.columns(3, count, device=DEVICE)
    hashes = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    flat, bell = (torch.zeros(rows, count, device=DEVICE) for _ in range(2))
    draw[(rows,)](key, step, columns, hashes, flat, bell, COUNT=count)
    expected = noise.rows(key, step, torch.arange(rows, device=DEVICE))
    assert torch.equal(hashes, expected)
    assert torch.equal(flat, noise.uniform(expected, columns))
    torch.testing.assert_close(bell, noise.normal(expected, columns), rtol=2e-7, atol=1e-9)
    assert bell.abs().max() == 3.0
