"""The counter-based stream: pinned values, purity, law, independence across every index.

All keys are fixed, so nothing is flaky. Levels: a bound of 5 sigma, or a p-value above that of 5 sigma (5.7e-7), which
the thousands of comparisons of this file need; p > 1e-3 for the few Kolmogorov-Smirnov tests.
"""

import math
import shutil
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor

from bayesnorm import noise

Z = 5.0
P_Z = float(2 * stats.norm.sf(Z))
P_KS = 1e-3
KEYS = [0, 1, 2, 2**62 + 12345, -1]
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def tensor(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


# The slow, obvious version of the stream, in Python integers.


def mix_reference(x: int) -> int:
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def row_reference(key: int, step: int, sample: int) -> int:
    return mix_reference(mix_reference(mix_reference(key) + GOLDEN * step) + GOLDEN * sample)


def column_reference(layer: int, channel: int) -> int:
    return mix_reference(mix_reference(layer ^ 0x243F6A8885A308D3) + GOLDEN * channel)


def uniform_reference(key: int, step: int, sample: int, layer: int, channel: int) -> float:
    top = mix_reference(row_reference(key, step, sample) + column_reference(layer, channel)) >> 40
    return ((top ^ 2**23) | 1) / 2**24  # the sign bit of a two's complement integer, flipped, orders it from 0


# Pinned values: whoever changes the stream changes every reproduction that was ever published with it.


def test_mix_is_splitmix64() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    published.append(16408922859458223821)  # the first five outputs of splitmix64 from seed 1234567
    counters = [signed((1234567 + GOLDEN * i) & MASK) for i in range(5)]
    assert noise.mix(torch.tensor(counters)).tolist() == [signed(x) for x in published]


def test_golden_values() -> None:
    key, step, sample = tensor(7), tensor(0), torch.arange(2)
    row, column = noise.rows(key, step, sample), noise.columns(0, 3)
    assert row.tolist() == [-7205399239080518280, 7548029490970160968]
    assert column.tolist() == [-7806499893473881467, -8742702792952477715, -5549342648040717659]
    assert noise.columns(5, 2).tolist() == [-4209154950713590555, -3680645305412866955]
    assert noise.rows(tensor(0), tensor(1000), sample).tolist() == [3656697646983120714, -4827720032890186165]
    assert noise.derive(key, 0).item() == -336096703477647680
    assert noise.derive(key, 1).item() == 5219520560144338995
    pinned = [[4058617, 3390263, 3991943], [122445, 11752917, 596373]]
    assert (noise.uniform(row, column) * 2**24).tolist() == pinned
    z = [[-0.700164080, -0.834230959, -0.712949991], [-2.442236423, 0.525920987, -1.804881692]]
    torch.testing.assert_close(noise.normal(row, column), torch.tensor(z), rtol=0, atol=2e-7)


@pytest.mark.parametrize("key", [*KEYS, -(2**63), 2**63 - 1])
def test_equals_the_reference_in_python_integers(key: int) -> None:
    steps, samples = [0, 1, 2**40, 2**63 - 1], [0, 3, 49999, 2**33]
    row = noise.rows(tensor(key), torch.tensor(steps), torch.tensor(samples))
    assert row.tolist() == [signed(row_reference(key & MASK, t, n)) for t, n in zip(steps, samples, strict=True)]
    u = noise.uniform(row, noise.columns(6, 5))
    expected = [
        [uniform_reference(key & MASK, t, n, 6, j) for j in range(5)] for t, n in zip(steps, samples, strict=True)
    ]
    assert u.tolist() == expected
    z = stats.norm.ppf(np.array(expected))
    np.testing.assert_array_equal(noise.normal(row, noise.columns(6, 5), None).numpy(), z.astype(np.float32))
    domain = signed(mix_reference(mix_reference((key & MASK) ^ 0x13198A2E03707344) + 3 * GOLDEN))
    assert noise.derive(tensor(key), 3).item() == domain


# Purity.


def test_pure_in_the_counters() -> None:
    key, step, sample, column = tensor(3), tensor(11), torch.arange(33), noise.columns(2, 41)
    state = torch.get_rng_state()
    row = noise.rows(key, step, sample)
    inputs = [x.clone() for x in (key, step, sample, row, column)]
    z, u = noise.normal(row, column), noise.uniform(row, column)
    torch.rand(7)
    torch.set_rng_state(state)
    assert torch.equal(z, noise.normal(noise.rows(key, step, sample), noise.columns(2, 41)))
    assert torch.equal(u, noise.uniform(noise.rows(key, step, sample), noise.columns(2, 41)))
    noise.mix(row), noise.derive(key, 1)
    assert torch.equal(torch.get_rng_state(), state)
    for before, after in zip(inputs, (key, step, sample, row, column), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_slices_of_a_block_are_the_blocks_of_slices(size: int) -> None:
    row, column = noise.rows(tensor(5), tensor(9), torch.arange(203)), noise.columns(1, 307)
    for draw in (noise.normal, noise.uniform):
        block = draw(row, column)
        by_rows = [draw(row[i : i + size], column) for i in range(0, row.numel(), size)]
        by_columns = [draw(row, column[i : i + size]) for i in range(0, column.numel(), size)]
        assert torch.equal(block, torch.cat(by_rows))
        assert torch.equal(block, torch.cat(by_columns, dim=1))


def test_permutations_commute() -> None:
    generator = torch.Generator().manual_seed(0)
    sample, order = torch.arange(100), torch.randperm(100, generator=generator)
    column, across = noise.columns(1, 70), torch.randperm(70, generator=generator)
    z = noise.normal(noise.rows(tensor(5), tensor(9), sample), column)
    assert torch.equal(z[order], noise.normal(noise.rows(tensor(5), tensor(9), sample[order]), column))
    assert torch.equal(z[:, across], noise.normal(noise.rows(tensor(5), tensor(9), sample), column[across]))


def test_step_per_row_equals_step_per_batch() -> None:
    sample = torch.arange(4)
    per_row = noise.rows(tensor(5), torch.tensor([0, 1, 1, 7]), sample)
    per_batch = [noise.rows(tensor(5), tensor(t), sample)[i] for i, t in enumerate([0, 1, 1, 7])]
    assert torch.equal(per_row, torch.stack(per_batch))


def test_layers_drawn_together_equal_layers_drawn_alone() -> None:
    row, widths = noise.rows(tensor(5), tensor(9), torch.arange(8)), [3, 16, 64]
    together = noise.normal(row, torch.cat([noise.columns(i, width) for i, width in enumerate(widths)]))
    alone = [noise.normal(row, noise.columns(i, width)) for i, width in enumerate(widths)]
    assert torch.equal(together, torch.cat(alone, dim=1))


# Types, arguments, keys.


def test_types_shapes_and_no_autograd() -> None:
    row, column = noise.rows(tensor(0), tensor(0), torch.arange(4)), noise.columns(0, 5)
    assert (row.dtype, row.shape, column.dtype, column.shape) == (torch.int64, (4,), torch.int64, (5,))
    assert (noise.derive(tensor(0), 1).dtype, noise.derive(tensor(0), 1).shape) == (torch.int64, ())
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            draws = [noise.normal(row, column), noise.normal(row, column, None), noise.uniform(row, column)]
    finally:
        torch.set_default_dtype(default)
    for draw in draws:
        assert (draw.dtype, draw.shape, draw.requires_grad) == (torch.float32, (4, 5), False)
    assert torch.equal(draws[0], noise.normal(row, column))


def test_reads_no_value_on_the_host() -> None:
    """Meta tensors have no values: whatever synchronizes or branches on one raises."""
    key, sample = torch.empty((), dtype=torch.int64, device="meta"), torch.empty(4, dtype=torch.int64, device="meta")
    row, column = noise.rows(noise.derive(key, 1), key, sample), noise.columns(0, 5, device="meta")
    assert noise.normal(row, column).shape == noise.uniform(row, column).shape == (4, 5)


def test_empty_blocks() -> None:
    row, column = noise.rows(tensor(0), tensor(0), torch.arange(0)), noise.columns(0, 5)
    assert noise.normal(row, column).shape == (0, 5)
    assert noise.normal(noise.rows(tensor(0), tensor(0), torch.arange(2)), noise.columns(0, 0)).shape == (2, 0)


def test_wrong_arguments_are_named() -> None:
    sample = torch.arange(4)
    row, column = noise.rows(tensor(0), tensor(0), sample), noise.columns(0, 5)
    with pytest.raises(ValueError, match=r"step must be int64 on cpu, got torch.int32"):
        noise.rows(tensor(0), torch.tensor(0, dtype=torch.int32), sample)
    with pytest.raises(ValueError, match=r"key must be int64 on cpu, got torch.int64 on meta"):
        noise.rows(torch.empty((), dtype=torch.int64, device="meta"), tensor(0), sample)
    with pytest.raises(ValueError, match=r"sample must be int64"):
        noise.rows(tensor(0), tensor(0), sample.float())
    for bound in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"bound must be positive.*{bound}"):
            noise.normal(row, column, bound)
    with pytest.raises(ValueError, match="layer=-1"):
        noise.columns(-1, 3)


def test_draw_key() -> None:
    keys = [noise.draw_key(torch.Generator().manual_seed(seed)) for seed in range(100)]
    assert keys == [noise.draw_key(torch.Generator().manual_seed(seed)) for seed in range(100)]
    assert len(set(keys)) == 100
    assert all(0 <= key < 2**63 for key in keys)
    for bit in range(63):  # n = 100 fair bits
        assert abs(sum(key >> bit & 1 for key in keys) - 50) < Z * 5
    state = torch.get_rng_state()
    noise.draw_key(torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
    try:
        first = noise.draw_key(None)
        assert first != noise.draw_key(None)
        torch.set_rng_state(state)
        assert first == noise.draw_key(None)
    finally:
        torch.set_rng_state(state)


# The law of a draw.


def million(draw: Callable[[Tensor, Tensor], Tensor], key: int) -> Tensor:
    """1e6 draws of 10 steps, 100 samples, 10 layers and 100 channels, as training makes them."""
    steps, samples = torch.arange(10).repeat_interleave(100), torch.arange(100).repeat(10)
    column = torch.cat([noise.columns(layer, 100) for layer in range(10)])
    return draw(noise.rows(tensor(key), steps, samples), column).double().flatten()


def unclamped(row: Tensor, column: Tensor) -> Tensor:
    return noise.normal(row, column, None)


def ks(values: Tensor, law: str) -> float:
    return float(stats.kstest(values.numpy(), law).pvalue)


@pytest.mark.parametrize("key", KEYS)
def test_uniform_law(key: int) -> None:
    u = million(noise.uniform, key)
    assert u.min() > 0
    assert u.max() < 1
    assert ks(u, "uniform") > P_KS
    counts = torch.bincount((u * 2**12).long(), minlength=2**12).double()
    p = stats.chisquare(counts.numpy()).pvalue
    assert P_Z < p < 1 - P_Z


@pytest.mark.parametrize("key", KEYS)
def test_normal_law(key: int) -> None:
    z = million(unclamped, key)
    n = z.numel()
    assert ks(z, "norm") > P_KS
    for k, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:  # E z^k and E z^2k - (E z^k)^2
        assert abs((z**k).mean() - mean) < Z * math.sqrt(variance / n)
    low, high = stats.chi2.ppf([P_Z / 2, 1 - P_Z / 2], n)
    assert low < (z * z).sum() < high
    for tail in (2.0, 3.0, 4.0):
        assert stats.binomtest(int((z.abs() > tail).sum()), n, 2 * stats.norm.sf(tail)).pvalue > P_Z


def test_law_tests_reject_a_perturbed_law() -> None:
    z, u = million(unclamped, KEYS[0]), million(noise.uniform, KEYS[0])
    for perturbed in (1.1 * z, 0.9 * z, z + 0.1, z - 0.1):
        assert ks(perturbed, "norm") < P_Z
    for perturbed in (0.9 * u, 1 - 0.9 * u, 0.9 * u + 0.1, u**1.1):
        assert ks(perturbed, "uniform") < P_Z


def clamped_moments(bound: float) -> tuple[float, float]:
    """E x^2 and E x^4 of x = clamp(z, -bound, bound), by parts."""
    density, tail = stats.norm.pdf(bound), stats.norm.sf(bound)
    inside = 1 - 2 * tail
    second = inside - 2 * bound * density + 2 * bound**2 * tail
    fourth = 3 * inside - 2 * bound * (bound**2 + 3) * density + 2 * bound**4 * tail
    return float(second), float(fourth)


@pytest.mark.parametrize("bound", [0.5, 1.0, 2.0, 3.0])
def test_clamped_law(bound: float) -> None:
    z = million(unclamped, KEYS[1])
    x = million(lambda row, column: noise.normal(row, column, bound), KEYS[1])
    assert torch.equal(x, z.clamp(-bound, bound))
    assert x.abs().max() == bound
    second, fourth = clamped_moments(bound)
    tolerance = Z * math.sqrt((fourth - second**2) / x.numel())
    assert abs(x.mean()) < Z * math.sqrt(second / x.numel())
    assert abs((x * x).mean() - second) < tolerance
    perturbed = (1.1 * z).clamp(-bound, bound)
    assert abs((perturbed * perturbed).mean() - second) > tolerance


def test_default_bound_is_three() -> None:
    assert million(noise.normal, 0).abs().max() == 3
    assert round(clamped_moments(3.0)[0], 4) == 0.9950  # as the docstring of normal says


# Independence across every index. A case is two blocks of draws whose counters differ in one way.

Block = tuple[int, Tensor, Tensor, int, Tensor]  # key, step (one per row), sample (one per row), layer, channel
SIDE = 256
LAGS = [1, 2, 3, 32, 1024]
SPAN = torch.arange(SIDE)
SAME = torch.full((SIDE,), 17)


def draws(block: Block) -> tuple[Tensor, Tensor]:
    key, step, sample, layer, channel = block
    row = noise.rows(tensor(key), step, sample)
    column = noise.columns(layer, int(channel.max()) + 1)[channel]
    return noise.uniform(row, column).double().flatten(), unclamped(row, column).double().flatten()


def dependence(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    """Smallest p-value: correlations of z, |z|, z^2 and of z^2 with z, chi-square of the joint 8 x 8 bins of u."""
    (u, z), (v, w) = first, second
    mean, std = math.sqrt(2 / math.pi), math.sqrt(1 - 2 / math.pi)

    def transforms(x: Tensor) -> dict[str, Tensor]:  # of mean 0 and variance 1 when x is standard normal
        return {"z": x, "abs": (x.abs() - mean) / std, "square": (x * x - 1) / math.sqrt(2)}

    a, b = transforms(z), transforms(w)
    pairs = [("z", "z"), ("abs", "abs"), ("square", "square"), ("z", "square"), ("square", "z")]
    sums = [float((a[i] * b[j]).sum()) / math.sqrt(z.numel()) for i, j in pairs]
    ps = [float(2 * stats.norm.sf(abs(s))) for s in sums]
    joint = torch.bincount((u * 8).long() * 8 + (v * 8).long(), minlength=64)
    p = float(stats.chisquare(joint.numpy()).pvalue)  # an unnaturally even table is as suspicious as an uneven one
    return min(*ps, 2 * min(p, 1 - p))


def lagged(lag: int) -> tuple[Tensor, Tensor]:
    """SIDE indices and the same plus lag, with no index in both: the pairs of draws are then disjoint."""
    start = SPAN // lag * 2 * lag + SPAN % lag
    return start, start + lag


def flipped(bit: int) -> tuple[Tensor, Tensor]:
    """SIDE indices whose given bit is 0 and the same with the bit set."""
    below = (1 << bit) - 1
    start = (SPAN & below) | ((SPAN & ~below) << 1)
    return start, start | signed(1 << bit)


def key_cases() -> Iterator[tuple[str, Block, Block]]:
    def block(key: int) -> Block:
        return key, SAME, SPAN, 3, SPAN

    for base in (0, 1, 123456789):
        for lag in LAGS:
            yield f"{base} lag {lag}", block(base), block(base + lag)
    for bit in range(64):
        yield f"bit {bit} of 0", block(0), block(signed(1 << bit))
        yield f"bit {bit}", block(987654321987654321), block(signed(987654321987654321 ^ (1 << bit)))
    for base in (0, 1):
        yield f"{base} and its complement", block(base), block(~base)
        yield f"{base} lag G", block(base), block(signed((base + GOLDEN) & MASK))


def step_cases() -> Iterator[tuple[str, Block, Block]]:
    for key in (0, 1):
        for lag in LAGS:
            for base in (0, 5000):
                pair = torch.full((SIDE,), base), torch.full((SIDE,), base + lag)
                yield f"key {key}: {base} lag {lag}", (key, pair[0], SPAN, 3, SPAN), (key, pair[1], SPAN, 3, SPAN)
            first, second = lagged(lag)
            yield f"key {key}: rows of lag {lag}", (key, first, SAME, 3, SPAN), (key, second, SAME, 3, SPAN)
        for bit in range(63):
            pair = torch.full((SIDE,), 0), torch.full((SIDE,), 1 << bit)
            yield f"key {key}: bit {bit} of 0", (key, pair[0], SPAN, 3, SPAN), (key, pair[1], SPAN, 3, SPAN)
        for bit in range(40):
            first, second = flipped(bit)
            yield f"key {key}: rows of bit {bit}", (key, first, SAME, 3, SPAN), (key, second, SAME, 3, SPAN)


def sample_cases() -> Iterator[tuple[str, Block, Block]]:
    for key in (0, 1):
        for lag in LAGS:
            first, second = lagged(lag)
            yield f"key {key}: lag {lag}", (key, SAME, first, 3, SPAN), (key, SAME, second, 3, SPAN)
        for bit in range(54):
            first, second = flipped(bit)
            yield f"key {key}: bit {bit}", (key, SAME, first, 3, SPAN), (key, SAME, second, 3, SPAN)


def layer_cases() -> Iterator[tuple[str, Block, Block]]:
    for base in (0, 1, 7):
        for lag in LAGS:
            yield f"{base} lag {lag}", (0, SAME, SPAN, base, SPAN), (0, SAME, SPAN, base + lag, SPAN)
    for bit in range(63):
        yield f"bit {bit} of 0", (1, SAME, SPAN, 0, SPAN), (1, SAME, SPAN, 1 << bit, SPAN)


def channel_cases() -> Iterator[tuple[str, Block, Block]]:
    for key in (0, 1):
        for lag in LAGS:
            first, second = lagged(lag)
            yield f"key {key}: lag {lag}", (key, SAME, SPAN, 3, first), (key, SAME, SPAN, 3, second)
        for bit in range(17):
            first, second = flipped(bit)
            yield f"key {key}: bit {bit}", (key, SAME, SPAN, 3, first), (key, SAME, SPAN, 3, second)


def exchanged_cases() -> Iterator[tuple[str, Block, Block]]:
    """One index takes the part of another; sums and exclusive ors of two indices stay the same."""
    for lag in LAGS:
        shifted, far = SPAN + SIDE * lag, SAME + lag
        yield f"step for sample, {lag}", (0, SPAN, shifted, 3, SPAN), (0, shifted, SPAN, 3, SPAN)
        yield f"step up, sample down by {lag}", (0, SAME, shifted + lag, 3, SPAN), (0, far, shifted, 3, SPAN)
        yield f"key up, step down by {lag}", (0, far, SPAN, 3, SPAN), (lag, SAME, SPAN, 3, SPAN)
        yield f"key up, sample down by {lag}", (0, SAME, shifted + lag, 3, SPAN), (lag, SAME, shifted, 3, SPAN)
        yield f"layer up, channel down by {lag}", (0, SAME, SPAN, 3, SPAN + lag), (0, SAME, SPAN, 3 + lag, SPAN)
        yield f"layer up, key down by {lag}", (lag, SAME, SPAN, 3, SPAN), (0, SAME, SPAN, 3 + lag, SPAN)
        first, second = lagged(lag)
        yield f"channel up, sample down by {lag}", (0, SAME, second, 3, first), (0, SAME, first, 3, second)


def derived_cases() -> Iterator[tuple[str, Block, Block]]:
    def block(key: int, domain: int | None) -> Block:
        derived = key if domain is None else int(noise.derive(tensor(key), domain))
        return derived, SAME, SPAN, 3, SPAN

    for key in KEYS:
        yield f"{key} itself", block(key, None), block(key, 0)
        for lag in LAGS:
            yield f"{key} domain lag {lag}", block(key, 0), block(key, lag)
            yield f"{key} key up, domain down by {lag}", block(key, lag), block(key + lag, 0)
        for domain in (0, 1):
            yield f"{key} key lag 1 in domain {domain}", block(key, domain), block(key + 1, domain)


CASES = [key_cases, step_cases, sample_cases, layer_cases, channel_cases, exchanged_cases, derived_cases]


@pytest.mark.parametrize("cases", CASES, ids=lambda cases: cases.__name__.removesuffix("_cases"))
def test_independent_across(cases: Callable[[], Iterator[tuple[str, Block, Block]]]) -> None:
    found = [(name, dependence(draws(first), draws(second))) for name, first, second in cases()]
    assert found
    assert [(name, p) for name, p in found if p < P_Z] == []


def test_independence_test_rejects_dependence() -> None:
    u, z = draws((0, SAME, SPAN, 3, SPAN))
    _, w = draws((1, SAME, SPAN, 3, SPAN))

    def law(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.special.ndtr(x).clamp(max=1 - 2**-24), x

    assert dependence((u, z), law(w)) > P_Z
    assert dependence((u, z), law(0.1 * z + math.sqrt(0.99) * w)) < P_Z
    assert dependence((u, z), law(w * torch.where(z.abs() > 0.6745, 1.1, 0.9))) < P_Z  # in variance alone
    assert dependence((u, z), (u, z)) < P_Z


def test_row_and_column_means_have_no_effect_of_their_own() -> None:
    """Two-way layout: row and column means of z vary as those of independent draws, in level and in square."""
    row, column = noise.rows(tensor(0), tensor(0), torch.arange(1024)), noise.columns(0, 1024)
    z = unclamped(row, column).double()
    for x, variance in ((z, 1.0), (z * z - 1, 2.0)):
        for dim in (0, 1):
            scaled = x.mean(dim) * math.sqrt(1024 / variance)
            # The sum of 1024 squared means has mean 1024; each has variance 2, plus the excess kurtosis 12 / 1024 of a
            # mean of 1024 squares.
            assert abs((scaled**2).sum() - 1024) < Z * math.sqrt(1024 * (2 + 12 / 1024))


# Hashes.


def test_no_duplicate_hashes() -> None:
    """4e6 hashes over small keys, steps, samples, layers and channels: a collision of random ones has p = 5e-7."""
    pairs = [(step, sample) for step in range(32) for sample in range(32)]
    step, sample = torch.tensor(pairs).unbind(1)
    row = torch.cat([noise.rows(tensor(key), step, sample) for key in range(4)])
    column = torch.cat([noise.columns(layer, 64) for layer in range(16)])
    hashes = noise.mix(row[:, None] + column).flatten()
    ordered = hashes.sort().values
    assert int((ordered[1:] == ordered[:-1]).sum()) == 0
    assert torch.equal(noise.uniform(row, column).flatten(), (((hashes >> 40) | 1) + 2**23) / 2**24)


def bits(x: Tensor) -> Tensor:
    return (x.unsqueeze(-1) >> torch.arange(64)) & 1


@pytest.mark.parametrize("inputs", ["counters", "strided", "random"])
def test_mix_avalanche(inputs: str) -> None:
    """A flipped input bit flips each output bit with p = 1/2, and the output bits are balanced."""
    x = {"counters": torch.arange(2**14), "strided": torch.arange(2**14) << 40}.get(inputs)
    x = noise.mix(torch.arange(2**14) + 10**6) if x is None else x
    hashed = noise.mix(x)
    assert (bits(hashed).sum(0) - x.numel() / 2).abs().max() < Z * math.sqrt(x.numel()) / 2
    for bit in range(64):
        clear = (x >> bit) & 1 == 0  # or the pairs of counters that differ in this bit would count twice
        changed = hashed[clear] ^ noise.mix(x[clear] ^ signed(1 << bit))
        n = changed.numel()
        assert (bits(changed).sum(0) - n / 2).abs().max() < Z * math.sqrt(n) / 2, f"input bit {bit}"


def test_mix_is_injective() -> None:
    """No two of the 2e6 integers around 0 collide, x and ~x among them: an arithmetic shift would make them."""
    hashed = noise.mix(torch.arange(-(10**6), 10**6)).sort().values
    assert bool((hashed[1:] != hashed[:-1]).all())


# Compiled, on CUDA, in a CUDA graph.


def everything(key: Tensor, step: Tensor, sample: Tensor, column: Tensor) -> tuple[Tensor, ...]:
    key = noise.derive(key, 1)
    row = noise.rows(key, step, sample)
    return row, noise.normal(row, column), noise.normal(row, column, None), noise.uniform(row, column)


def compile_backends() -> list[object]:
    missing = shutil.which("g++") is None and shutil.which("clang++") is None
    inductor = pytest.param("inductor", marks=pytest.mark.skipif(missing, reason="inductor needs a C++ compiler"))
    return ["eager", "aot_eager", inductor]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", compile_backends())
def test_compiled_draws_are_identical(backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    column = torch.cat([noise.columns(0, 100), noise.columns(1, 57)])
    for step in (0, 1, 2**40):
        counters = tensor(7), tensor(step), torch.arange(33) + step, column
        for ours, theirs in zip(everything(*counters), compiled(*counters), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.dtype == theirs.dtype


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_and_cuda_graph_draws_equal_those_of_the_cpu() -> None:
    counters = [tensor(7), tensor(0), torch.arange(333), torch.cat([noise.columns(0, 1000), noise.columns(1, 354)])]
    key, step, sample, column = [x.cuda() for x in counters]
    assert torch.equal(noise.columns(1, 354, device="cuda").cpu(), counters[3][1000:])
    with pytest.raises(ValueError, match="step must be int64 on cuda"):
        noise.rows(key, counters[1], sample)

    def compare(theirs: tuple[Tensor, ...]) -> None:
        row, z, free, u = everything(*counters)
        assert torch.equal(row, theirs[0].cpu())
        assert torch.equal(u, theirs[3].cpu())
        for a, b in ((z, theirs[1].cpu()), (free, theirs[2].cpu())):
            torch.testing.assert_close(a, b, rtol=2**-23, atol=0)  # a tie, rounded the other way
            assert int((a != b).sum()) <= 1

    compare(everything(key, step, sample, column))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything(key, step, sample, column)
    for value in (0, 1, 2**40):
        counters[1] = tensor(value)
        step.fill_(value)
        graph.replay()
        compare(captured)
