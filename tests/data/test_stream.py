import itertools

import pytest
import torch
from scipy.stats import chi2

from bayesnorm.data import stream
from bayesnorm.data.stream import Purpose

P_OF_5_SIGMA = 5.7e-7


def test_rows_do_not_depend_on_how_a_step_is_cut():
    whole = stream.rows(3, Purpose.AUGMENT, 7, torch.arange(20))
    parts = [stream.rows(3, Purpose.AUGMENT, 7, torch.arange(first, first + 5)) for first in range(0, 20, 5)]
    assert torch.equal(torch.cat(parts), whole)
    assert len(whole.unique()) == 20


def test_rows_differ_between_seeds_purposes_and_steps():
    made = [
        stream.rows(seed, purpose, step, torch.arange(50))
        for seed, purpose, step in itertools.product((0, 1, 2**40), Purpose, (0, 1, 10**9))
    ]
    assert len(torch.cat(made).unique()) == 50 * len(made)


def test_purposes_are_apart_from_those_of_the_network():
    assert min(Purpose) > 2
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose)


def test_permutation_is_one():
    for count in (1, 2, 5, 1000):
        order = stream.permutation(0, Purpose.ORDER, 3, count)
        assert torch.equal(order.sort().values, torch.arange(count))


def test_permutation_follows_from_seed_and_step_alone():
    torch.manual_seed(0)
    first = stream.permutation(0, Purpose.ORDER, 3, 100)
    torch.manual_seed(1)
    assert torch.equal(stream.permutation(0, Purpose.ORDER, 3, 100), first)
    for other in ((1, Purpose.ORDER, 3), (0, Purpose.SPLIT, 3), (0, Purpose.ORDER, 4)):
        assert not torch.equal(stream.permutation(*other, 100), first)


@pytest.mark.parametrize("vary", ["seed", "step"])
def test_all_permutations_are_equally_likely(vary):
    """The 24 orders of four things against the uniform law, chi-square at 5 sigma."""
    n = 4800
    made = (
        stream.permutation(*((i, Purpose.ORDER, 0) if vary == "seed" else (0, Purpose.ORDER, i)), 4) for i in range(n)
    )
    codes = torch.stack(list(made)) @ torch.tensor([64, 16, 4, 1])
    counts = codes.bincount()
    counts = counts[counts > 0].double()
    assert len(counts) == 24
    assert p_value(counts) > P_OF_5_SIGMA
    counts[0] *= 2
    assert p_value(counts) < P_OF_5_SIGMA


def p_value(counts):
    expected = counts.sum() / len(counts)
    return chi2.sf(float(((counts - expected).square() / expected).sum()), len(counts) - 1)
