"""Error-coverage curves against a slow, obvious version; streamed against exact."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from bayesnorm.evaluate import Curve, SelectiveTally, accuracy, aurc, entropy, error_coverage, excess_aurc, uncertainty

LOG0 = -math.inf
WAYS = ["entropy", "max_prob"]


def problem(
    count: int = 400, classes: int = 5, space: tuple[int, ...] = (), sharpness: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Targets drawn from the predictions; ``sharpness`` 10 makes most of them nearly sure, as a trained network is."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * sharpness * torch.randn(count, classes, *space, generator=generator, dtype=torch.float64)
    rows = (logits / sharpness).softmax(1).movedim(1, -1).reshape(-1, classes)
    return logits.log_softmax(1), torch.multinomial(rows, 1, generator=generator).view(count, *space)


def mean_risk(wrong: list[int]) -> Fraction:
    """AURC of predictions in the order in which they are accepted."""
    return sum((Fraction(sum(wrong[:k]), k) for k in range(1, len(wrong) + 1)), Fraction()) / len(wrong)


def curve_of(sizes: list[int], errors: list[int]) -> Curve:
    """Groups of equal scores with so many errors in each."""
    return Curve(
        torch.arange(len(sizes), dtype=torch.float64), torch.tensor(sizes).cumsum(0), torch.tensor(errors).cumsum(0)
    )


def tally_of(*batches: tuple[Tensor, Tensor], by: str = "entropy", bins: int = 4096) -> SelectiveTally:
    tally = SelectiveTally(by, bins)
    for batch in batches:
        tally.update(*batch)
    return tally


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("space", [(), (2, 3)])
def test_agrees_with_the_obvious_version(by, space):
    log_probs, targets = problem(60, 4, space)
    targets[::5] = -100
    curve = error_coverage(log_probs, targets, by)
    probs, kept = log_probs.exp().movedim(1, -1).flatten(0, -2), targets.flatten() != -100
    probs, classes = probs[kept], targets.flatten()[kept].tolist()
    scores = [-sum(p * math.log(p) for p in row) if by == "entropy" else 1 - max(row) for row in probs.tolist()]
    ranked = sorted(zip(scores, (probs.argmax(1) != torch.tensor(classes)).tolist(), strict=True))
    wrong = [int(error) for _, error in ranked]
    assert curve.threshold.tolist() == pytest.approx([score for score, _ in ranked], rel=1e-9)
    assert curve.coverage.tolist() == pytest.approx([k / len(wrong) for k in range(1, len(wrong) + 1)])
    assert curve.risk.tolist() == pytest.approx([sum(wrong[:k]) / k for k in range(1, len(wrong) + 1)])
    assert curve.risk[-1].item() == pytest.approx(1 - accuracy(log_probs, targets))
    assert aurc(log_probs, targets, by) == pytest.approx(float(mean_risk(wrong)), rel=1e-12)
    expected = float(mean_risk(wrong) - mean_risk(sorted(wrong)))
    assert excess_aurc(log_probs, targets, by) == pytest.approx(expected, rel=1e-9)


def test_equal_scores_are_accepted_together():
    sure, unsure = [0.9, 0.1], [0.6, 0.4]
    log_probs = torch.tensor([unsure, sure, unsure, sure, unsure], dtype=torch.float64).log()
    curve = error_coverage(log_probs, torch.tensor([1, 0, 0, 1, 0]), "max_prob")
    assert curve.accepted.tolist() == [2, 5]
    assert curve.errors.tolist() == [1, 2]
    assert curve.threshold.tolist() == pytest.approx([0.1, 0.4])


@pytest.mark.parametrize(
    ("sizes", "errors"),
    [([3, 3], [1, 2]), ([6], [2]), ([1, 4, 1], [1, 2, 0]), ([2, 4], [0, 0]), ([2, 4], [2, 4])],
)
def test_area_is_the_mean_over_all_orders_of_equals(sizes, errors):
    groups = [[1] * bad + [0] * (size - bad) for size, bad in zip(sizes, errors, strict=True)]
    orders = itertools.product(*[list(itertools.permutations(group)) for group in groups])
    areas = [mean_risk([wrong for group in order for wrong in group]) for order in orders]
    assert curve_of(sizes, errors).aurc == pytest.approx(float(sum(areas, Fraction()) / len(areas)), rel=1e-12)


def test_excess_by_hand():
    # Right, wrong, right, wrong: risks 0, 1/2, 1/3, 1/2; the best order has 0, 0, 1/3, 1/2.
    curve = curve_of([1, 1, 1, 1], [0, 1, 0, 1])
    assert curve.aurc == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert curve.excess_aurc == pytest.approx(1 / 8)
    assert curve_of([1, 1, 1, 1], [0, 0, 1, 1]).excess_aurc == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(("sizes", "errors"), [([2, 3], [0, 0]), ([2, 3], [2, 3]), ([1], [0]), ([1], [1])])
def test_all_right_or_all_wrong_leaves_no_excess(sizes, errors):
    curve = curve_of(sizes, errors)
    assert curve.aurc == pytest.approx(float(errors[0] > 0), abs=1e-12)
    assert curve.excess_aurc == pytest.approx(0, abs=1e-12)


def test_coverage_at_a_risk():
    curve = curve_of([1, 1, 2, 4], [0, 1, 0, 3])  # risks 0, 1/2, 1/4, 1/2 at 1/8, 1/4, 1/2, 1
    for risk, coverage in ((0.0, 1 / 8), (0.24, 1 / 8), (0.25, 1 / 2), (0.49, 1 / 2), (0.5, 1.0), (1.0, 1.0)):
        assert curve.coverage_at(risk) == coverage
    assert curve_of([2, 2], [1, 0]).coverage_at(0.2) == 0
    for risk in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=f"risk={risk}"):
            curve.coverage_at(risk)


@pytest.mark.parametrize("by", WAYS)
def test_corners(by):
    certain = torch.tensor([[0.0, LOG0], [LOG0, 0.0], [0.0, LOG0]])
    for curve in (
        error_coverage(certain, torch.tensor([0, 0, 0]), by),
        tally_of((certain, torch.tensor([0, 0, 0])), by=by).curve(),
    ):
        assert (curve.accepted.tolist(), curve.errors.tolist()) == ([3], [1])
        assert curve.aurc == pytest.approx(1 / 3)
    one_class = error_coverage(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), by)
    assert one_class.coverage_at(0.0) == 1
    assert one_class.aurc == one_class.excess_aurc == 0


def test_uncertainty_near_certainty():
    log_probs = torch.tensor([[-1e-12, math.log(1e-12)]], dtype=torch.float64)
    assert uncertainty(log_probs, "max_prob").item() == pytest.approx(1e-12, rel=1e-9)
    assert torch.equal(uncertainty(log_probs), entropy(log_probs))
    above = torch.tensor([[1e-7, -30.0]])  # rounding may leave a probability above 1
    for by in WAYS:
        assert uncertainty(above, by).item() >= 0


@pytest.mark.parametrize("by", WAYS)
def test_float32_tells_apart_what_is_nearly_sure(by):
    """Of the first three the largest probability is 1 in float32; their order is still that of the logits."""
    log_probs = torch.tensor([[30.0, 0, 0], [25.0, 0, 0], [20.0, 0, 0], [5.0, 0, 0]]).log_softmax(1)
    assert log_probs[:3, 0].tolist() == [0.0] * 3
    found = uncertainty(log_probs, by)
    assert (found.diff() > 0).all()
    exact = torch.tensor([[30.0, 0, 0], [25.0, 0, 0], [20.0, 0, 0], [5.0, 0, 0]], dtype=torch.float64).log_softmax(1)
    torch.testing.assert_close(found.double(), uncertainty(exact, by), rtol=0.1, atol=0)  # p log p is 0 for p = 1
    torch.testing.assert_close(uncertainty(exact, "max_prob"), -torch.expm1(exact.amax(1)), rtol=0, atol=1e-15)
    curve = error_coverage(log_probs, torch.tensor([0, 0, 1, 1]), by)
    assert (curve.accepted.tolist(), curve.errors.tolist()) == ([1, 2, 3, 4], [0, 0, 1, 2])
    streamed = tally_of((log_probs, torch.tensor([0, 0, 1, 1])), by=by).curve()
    assert torch.equal(streamed.accepted, curve.accepted)


def test_area_of_thousands_of_millions():
    """The risk is 0 up to N/2 and 1 - N / 2k from there: 1/2 - (H_N - H_{N/2}) / 2, H_n = log n + gamma + 1 / 2n."""
    half = 5 * 10**9
    expected = 0.5 - (math.log(2) - 1 / (4 * half)) / 2
    assert curve_of([half, half], [0, half]).aurc == pytest.approx(expected, rel=1e-13)
    tally = tally_of((torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log(), torch.tensor([0, 1])))
    tally.sums.mul_(half)  # float64: counts are exact up to 2^53
    tally.update(torch.tensor([[0.6, 0.4]]).log(), torch.tensor([1]))
    assert tally.curve().accepted.tolist() == [half, 2 * half + 1]
    assert tally.curve().aurc == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("by", WAYS)
def test_filled_bins_hold_every_prediction_within_their_edges(by):
    log_probs, targets = problem(500, sharpness=3.0)
    lower, upper, cells = tally_of((log_probs, targets), by=by, bins=64).filled()
    scores, wrong = uncertainty(log_probs, by), log_probs.argmax(1) != targets
    assert (lower < upper).all()
    assert (upper[:-1] <= lower[1:]).all()
    for low, high, (right, bad) in zip(lower.tolist(), upper.tolist(), cells.tolist(), strict=True):
        inside = (scores > low) & (scores <= high)
        assert (int((inside & ~wrong).sum()), int((inside & wrong).sum())) == (right, bad)
    assert cells.sum() == 500


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_every_streamed_point_is_exact(by, sharpness):
    log_probs, targets = problem(2000, 5, (2,), sharpness)
    targets[::9] = -100
    exact, streamed = error_coverage(log_probs, targets, by), tally_of((log_probs, targets), by=by).curve()
    index = torch.searchsorted(exact.threshold, streamed.threshold, right=True) - 1
    assert torch.equal(exact.accepted[index], streamed.accepted)
    assert torch.equal(exact.errors[index], streamed.errors)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize(("sharpness", "close"), [(1.0, 1e-4), (3.0, 1e-4), (10.0, 1e-3)])
def test_error_of_streaming_is_bounded(by, sharpness, close):
    """e errors in a bin of m, in any order, are at most e (m - e) / m away from being spread evenly over it."""
    log_probs, targets = problem(20_000, 5, (), sharpness)
    exact, streamed = error_coverage(log_probs, targets, by), tally_of((log_probs, targets), by=by).curve()
    zero = torch.zeros(1, dtype=torch.int64)
    sizes, errors = streamed.accepted.diff(prepend=zero), streamed.errors.diff(prepend=zero)
    away = (errors * (sizes - errors) / sizes.double()).repeat_interleave(sizes)
    bound = (away / torch.arange(1, 20_001)).mean().item()
    assert abs(streamed.aurc - exact.aurc) <= bound + 1e-12
    assert bound < 0.05
    assert abs(streamed.aurc - exact.aurc) < close
    for risk in (0.1, 0.2):
        assert 0 <= exact.coverage_at(risk) - streamed.coverage_at(risk) < 0.01


def test_more_bins_come_closer():
    log_probs, targets = problem(20_000, sharpness=3.0)
    exact = aurc(log_probs, targets)
    errors = [abs(tally_of((log_probs, targets), bins=bins).curve().aurc - exact) for bins in (4, 64, 4096)]
    assert errors[2] < errors[1] / 5 < errors[0] / 25


def test_one_bin_knows_the_error_rate_only():
    log_probs, targets = problem()
    curve = tally_of((log_probs, targets), bins=1).curve()
    assert curve.coverage.tolist() == [1.0]
    assert curve.aurc == pytest.approx(1 - accuracy(log_probs, targets))


@pytest.mark.parametrize("by", WAYS)
def test_streamed_merged_and_reduced_is_whole(by):
    log_probs, targets = problem(300, 5, (3,))
    targets[::7] = -100
    batches = list(zip(log_probs.split(13), targets.split(13), strict=True))
    whole, first, second = (tally_of(*part, by=by) for part in ([(log_probs, targets)], batches[::2], batches[1::2]))
    counts = slice(0, 2 * 4096)
    assert torch.equal((first.sums + second.sums)[counts], whole.sums[counts])
    reduced = SelectiveTally(by)
    reduced.sums.copy_(first.sums + second.sums)  # in place, as an all-reduce does it
    first.merge(second)
    first.merge(SelectiveTally(by))
    for found in (first, reduced):
        assert torch.equal(found.curve().accepted, whole.curve().accepted)
        assert found.curve().aurc == whole.curve().aurc
    assert whole.sums.shape == (2 * 4096 + 3,)


@pytest.mark.parametrize(("by", "bins"), [("max_prob", 4096), ("entropy", 8)])
def test_unlike_tallies_do_not_merge(by, bins):
    with pytest.raises(ValueError, match=rf"by={by}, bins={bins} cannot be merged into by=entropy, bins=4096"):
        SelectiveTally().merge(SelectiveTally(by, bins))


@pytest.mark.parametrize(
    ("log_probs", "targets", "message"),
    [
        (torch.zeros(2, 1), torch.full((2,), -100), "no targets.*add a batch"),
        (torch.tensor([[3.0, 1.0]]), torch.tensor([0]), "pass log-probabilities, not logits"),
        (torch.tensor([[0.5, 0.5]]).log(), torch.tensor([2]), "1 targets are not a class"),
        (torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), "1 predictions are NaN"),
    ],
    ids=["ignored", "logits", "target", "nan"],
)
@pytest.mark.parametrize("by", WAYS)
def test_bad_input(log_probs, targets, message, by):
    for attempt in (
        lambda: error_coverage(log_probs, targets, by),
        lambda: tally_of((log_probs, targets), by=by).curve(),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()


def test_bad_options():
    with pytest.raises(ValueError, match="no targets"):
        SelectiveTally().curve()
    with pytest.raises(ValueError, match="bins=0"):
        SelectiveTally(bins=0)
    for attempt in (lambda: SelectiveTally("margin"), lambda: uncertainty(torch.zeros(1, 1), "margin")):
        with pytest.raises(ValueError, match="by='margin': choose 'entropy' or 'max_prob'"):
            attempt()


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def test_an_update_neither_waits_nor_scatters():
    tally, batch = SelectiveTally(), problem(10)
    with Recorder() as recorder:
        tally.update(*batch)
    assert "sort" in recorder.names
    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "index", "unique", "equal"}
    assert not recorder.names & (waiting | {"bincount", "histc", "scatter_add", "scatter_add_", "index_put_"})
