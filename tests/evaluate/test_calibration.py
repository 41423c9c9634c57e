"""Reliability and temperature against scikit-learn, scipy and cases by hand."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve
from torch import Tensor

from bayesnorm.evaluate import (
    SelectiveTally,
    Tally,
    accuracy,
    adaptive_ece,
    adaptive_reliability,
    adaptive_reliability_of,
    calibrated,
    calibrated_nll,
    calibration,
    ece,
    fit_temperature,
    nll,
    reliability,
    reliability_of,
)

LOG0 = -math.inf


def problem(count: int = 600, classes: int = 5, sharpness: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Targets drawn from the softmax of logits, predictions with these logits times ``sharpness``."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (sharpness * logits).log_softmax(1), targets


@pytest.mark.parametrize(("strategy", "function"), [("uniform", reliability), ("quantile", adaptive_reliability)])
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_agrees_with_scikit_learn(strategy, function, bins):
    log_probs, targets = problem()  # 600 is a multiple of the bins: the quantiles of both fall between targets
    found = function(log_probs, targets, bins)
    confidence, guess = log_probs.exp().max(1)
    hits = (guess == targets).numpy()
    expected_accuracy, expected = calibration_curve(hits, confidence.numpy(), n_bins=bins, strategy=strategy)
    filled = found.count > 0  # scikit-learn leaves empty bins out
    assert found.accuracy[filled].tolist() == pytest.approx(expected_accuracy.tolist(), rel=1e-12)
    assert found.confidence[filled].tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    assert found.count.sum() == 600
    assert found.accuracy[~filled].isnan().all()
    assert found.confidence[~filled].isnan().all()


def test_reliability_streams_and_gives_the_ece():
    log_probs, targets = problem()
    targets[::5] = -100
    tally = Tally()
    for batch in zip(log_probs.split(70), targets.split(70), strict=True):
        tally.update(*batch)
    streamed, whole = reliability_of(tally), reliability(log_probs, targets)
    torch.testing.assert_close(streamed.confidence, whole.confidence, rtol=1e-12, atol=0, equal_nan=True)
    assert torch.equal(streamed.count, whole.count)
    assert streamed.ece == pytest.approx(ece(log_probs, targets), rel=1e-12)


def test_adaptive_ece_by_hand():
    # Confidences 0.6, 0.7 | 0.8, 0.9 in two bins of two; right, wrong | right, right.
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.7, 0.3]], dtype=torch.float64)
    found = adaptive_ece(probs.log(), torch.tensor([0, 0, 0, 1]), bins=2)
    assert found == pytest.approx(abs(0.5 - 0.65) / 2 + abs(1 - 0.85) / 2)


def test_sizes_of_adaptive_bins_differ_by_one():
    for count, bins in ((100, 15), (7, 3), (4, 9)):
        sizes = adaptive_reliability(*problem(count), bins).count
        assert sizes.sum() == count
        assert sizes.max() - sizes.min() <= 1


def test_equal_confidences_share_a_bin_in_any_order():
    probs = torch.tensor([0.6] * 5 + [0.9] * 3, dtype=torch.float64)
    log_probs = torch.stack([probs, 1 - probs], 1).log()
    targets = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1])
    expected = abs(2 / 5 - 0.6) * 5 / 8 + abs(2 / 3 - 0.9) * 3 / 8
    for seed in range(5):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
        assert adaptive_ece(log_probs[order], targets[order], bins=4) == pytest.approx(expected)


def test_adaptive_bins_of_float32_do_not_pile_up_at_certainty():
    """Half of the largest probabilities are 1 in float32; the bins have equal mass all the same."""
    logits = torch.cat([torch.linspace(18, 60, 50), torch.linspace(0.1, 3, 50)])
    log_probs = torch.stack([logits, torch.zeros(100)], 1).log_softmax(1)
    assert (log_probs[:50, 0] == 0).all()
    found = adaptive_reliability(log_probs, torch.zeros(100, dtype=torch.int64), 10)
    assert found.count.tolist() == [10.0] * 10
    assert (found.confidence.diff() >= 0).all()


def selective(*batches: tuple[Tensor, Tensor], bins: int = 4096) -> SelectiveTally:
    tally = SelectiveTally("max_prob", bins)
    for batch in batches:
        tally.update(*batch)
    return tally


def distance_allowed(tally: SelectiveTally, bins: int) -> float:
    """The bound of ``adaptive_reliability_of``: half widths, and twice what may lie beyond a boundary of equal mass."""
    lower, upper, cells = tally.filled()
    sizes = cells.sum(1)
    count = sizes.sum()
    first = count - sizes.cumsum(0)
    boundary = -(-(first * bins // count + 1) * count // bins)
    beyond = (first + sizes - boundary).clamp(min=0)
    return ((sizes * (upper - lower) / 2).sum() + 2 * beyond.sum()).item() / count.item()


@pytest.mark.parametrize("bins", [1, 2, 15, 100])
@pytest.mark.parametrize("fine", [1, 64, 4096])
@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0, 10.0])
def test_streamed_adaptive_error_is_within_its_bound(bins, fine, sharpness):
    log_probs, targets = problem(5000, 5, sharpness)
    targets[::9] = -100
    tally = selective((log_probs, targets), bins=fine)
    bound = distance_allowed(tally, bins)
    found = adaptive_reliability_of(tally, bins)
    assert abs(found.ece - adaptive_ece(log_probs, targets, bins)) <= bound + 1e-12
    assert bound < 0.25 or fine < 4096 or bins > 15
    assert found.count.sum() == (targets != -100).sum()


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0, 10.0])
def test_streamed_adaptive_reliability_comes_close(sharpness):
    for dtype in (torch.float32, torch.float64):
        log_probs, targets = problem(20_000, 5, sharpness)
        log_probs = log_probs.to(dtype)
        exact, found = (
            adaptive_reliability(log_probs, targets),
            adaptive_reliability_of(selective((log_probs, targets))),
        )
        assert found.ece == pytest.approx(exact.ece, abs=1e-3)
        torch.testing.assert_close(found.confidence, exact.confidence, rtol=0, atol=0.01)
        assert (found.count - exact.count).abs().max() < 0.02 * 20_000


def test_streamed_bins_of_few_levels_are_the_exact_ones():
    """Nothing lies across a boundary, so only confidences may differ, by half the width of a fine bin."""
    levels = torch.tensor([1.0, 1 - 1e-9, 0.999, 0.95, 0.7, 0.5], dtype=torch.float64)
    probs = levels[torch.arange(600) % 6]
    log_probs = torch.stack([probs, 1 - probs], 1).log()
    targets = torch.randint(2, (600,), generator=torch.Generator().manual_seed(0))
    for bins in (1, 4, 15):
        exact = adaptive_reliability(log_probs, targets, bins)
        found = adaptive_reliability_of(selective((log_probs, targets)), bins)
        assert torch.equal(found.count, exact.count)
        torch.testing.assert_close(found.accuracy, exact.accuracy, rtol=1e-12, atol=0, equal_nan=True)
        allowed = 0.005 * (1 - exact.confidence) + 1e-15
        assert not ((found.confidence - exact.confidence).abs() > allowed).any()


@pytest.mark.parametrize(
    ("log_probs", "targets", "expected"),
    [
        ([[0.0, LOG0], [LOG0, 0.0]], [0, 1], 0.0),
        ([[0.0, LOG0], [LOG0, 0.0]], [1, 0], 1.0),
        ([[0.0]], [0], 0.0),
        ([[math.log(0.25)] * 4], [3], 0.25),
        ([[math.nan] * 2, [0.0, LOG0]], [-100, 0], 0.0),
    ],
    ids=["sure-right", "sure-wrong", "one-class", "even", "ignored-nan"],
)
def test_corners_of_the_adaptive_error(log_probs, targets, expected):
    batch = torch.tensor(log_probs), torch.tensor(targets)
    assert adaptive_ece(*batch) == pytest.approx(expected, abs=1e-7)
    assert adaptive_reliability_of(selective(batch)).ece == pytest.approx(
        expected, abs=0.005 * (1 - math.exp(max(log_probs[-1]))) + 1e-7
    )


def test_streamed_adaptive_reliability_adds_up_in_fixed_memory():
    log_probs, targets = problem(900)
    whole = selective((log_probs, targets))
    parts = [selective((log_probs[i::3], targets[i::3])) for i in range(3)]
    for other in parts[1:]:
        parts[0].merge(other)
    assert parts[0].sums.shape == selective().sums.shape
    expected = adaptive_reliability_of(whole)
    assert adaptive_reliability_of(parts[0]).ece == expected.ece
    whole.sums.mul_(10**9)
    assert adaptive_reliability_of(whole).ece == pytest.approx(expected.ece, rel=1e-12)
    assert adaptive_reliability_of(whole).count.sum() == 9 * 10**11


def test_a_tally_that_gives_no_adaptive_reliability():
    with pytest.raises(ValueError, match=r"by='entropy'.*pass a tally by 'max_prob'"):
        adaptive_reliability_of(SelectiveTally("entropy"))
    with pytest.raises(ValueError, match="no targets"):
        adaptive_reliability_of(selective())
    with pytest.raises(ValueError, match="bins=0"):
        adaptive_reliability_of(selective(problem(5)), 0)
    with pytest.raises(ValueError, match="1 predictions are NaN"):
        adaptive_reliability_of(selective((torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))))


@pytest.mark.parametrize("sharpness", [0.2, 0.7, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_temperature_is_the_minimum_that_scipy_finds(sharpness, classes):
    log_probs, targets = problem(400, classes, sharpness)
    expected = minimize_scalar(
        lambda log_t: nll((log_probs / math.exp(log_t)).log_softmax(1), targets),
        bounds=(math.log(0.01), math.log(100)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    temperature = fit_temperature(log_probs, targets)
    assert temperature == pytest.approx(math.exp(expected.x), rel=1e-5)
    assert calibrated_nll(log_probs, targets, temperature) <= expected.fun + 1e-12


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 4.0])
def test_temperature_undoes_what_was_done(sharpness):
    """Fisher information of T at the truth gives the standard error; five of them."""
    log_probs, targets = problem(20_000, 5, sharpness)
    true = calibrated(log_probs, sharpness)
    variance = (true.exp() * true.square()).sum(1) - (true.exp() * true).sum(1).square()
    error = 1 / math.sqrt(variance.sum().item())
    assert abs(sharpness / fit_temperature(log_probs, targets) - 1) < 5 * error


def test_calibrated_nll_beside_the_raw_one():
    log_probs, targets = problem(sharpness=5.0)
    temperature = fit_temperature(log_probs, targets)
    assert calibrated_nll(log_probs, targets, 1.0) == pytest.approx(nll(log_probs, targets), rel=1e-12)
    assert calibrated_nll(log_probs, targets, temperature) == pytest.approx(
        nll(calibrated(log_probs, temperature), targets), rel=1e-12
    )
    assert calibrated_nll(log_probs, targets, temperature) < nll(log_probs, targets) - 0.1
    assert accuracy(calibrated(log_probs, temperature), targets) == accuracy(log_probs, targets)


def test_pixels_and_ignored_targets():
    log_probs, targets = problem(600, 5, 3.0)
    expected = fit_temperature(log_probs, targets)
    padded = torch.cat([targets, torch.full((200,), -100)])
    pixels = torch.cat([log_probs, torch.full((200, 5), math.nan, dtype=torch.float64)])
    found = fit_temperature(pixels.view(8, 10, 10, 5).movedim(3, 1), padded.view(8, 10, 10))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("log_probs", "targets", "expected"),
    [
        ([[math.log(0.9), math.log(0.1)]] * 3, [0, 0, 0], 0.01),  # always right: colder is better without end
        ([[math.log(0.9), math.log(0.1)]] * 3, [1, 1, 1], 100.0),  # always wrong: hotter is
        ([[0.0, LOG0], [LOG0, 0.0]], [0, 1], 1.0),  # nothing to gain
        ([[0.0]] * 3, [0, 0, 0], 1.0),
        ([[math.log(1 / 7)] * 7] * 3, [0, 1, 2], 1.0),
        ([[math.log(0.6), math.log(0.4), LOG0]] * 5, [0, 0, 0, 1, 1], 1.0),
    ],
    ids=["right", "wrong", "certain", "one-class", "even", "zero-probability"],
)
def test_corners_of_the_temperature(log_probs, targets, expected):
    found = fit_temperature(torch.tensor(log_probs, dtype=torch.float64), torch.tensor(targets))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_calibrated_is_a_power_of_the_probabilities(temperature):
    probs = torch.tensor([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]], dtype=torch.float64)
    powers = probs ** (1 / temperature)
    expected = powers / powers.sum(1, keepdim=True)
    torch.testing.assert_close(calibrated(probs.log(), temperature).exp(), expected, rtol=1e-12, atol=0)
    assert calibrated(probs.log()[1:], temperature).tolist() == [[0.0, LOG0, LOG0]]


def test_calibrated_nll_of_certainty():
    certain = torch.tensor([[0.0, LOG0], [LOG0, 0.0]])
    assert calibrated_nll(certain, torch.tensor([0, 1]), 2.0) == 0
    assert calibrated_nll(certain, torch.tensor([0, 0]), 2.0) == math.inf


@pytest.mark.parametrize("sharpness", [0.05, 1.0, 30.0])
def test_few_derivatives_are_enough_and_parts_add_up(sharpness, monkeypatch):
    log_probs, targets = problem(2000, 3, sharpness)
    expected, calls = fit_temperature(log_probs, targets), []
    plain = calibration._derivatives
    monkeypatch.setattr(calibration, "COLUMNS", 7)
    monkeypatch.setattr(calibration, "_derivatives", lambda *args: (calls.append(args), plain(*args))[1])
    assert fit_temperature(log_probs, targets) == pytest.approx(expected, rel=1e-9)
    assert len(calls) <= 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_temperature_of_lower_precision(dtype):
    log_probs, targets = problem(1000, 4, 3.0)
    low = log_probs.to(dtype)
    assert fit_temperature(low, targets) == pytest.approx(fit_temperature(low.double(), targets), rel=1e-9)


def test_even_classes_stay_even_at_any_temperature():
    log_probs = torch.tensor([[0.0, LOG0, LOG0], [math.log(0.5), math.log(0.5), LOG0]])
    torch.testing.assert_close(calibrated(log_probs, 7.0).exp(), log_probs.exp())


@pytest.mark.parametrize("function", [reliability, adaptive_reliability, adaptive_ece, fit_temperature])
def test_nothing_that_counts(function):
    with pytest.raises(ValueError, match=r"no targets.*ignore_index=-100; add a batch"):
        function(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([-100]))


def test_not_a_number_does_not_hide():
    log_probs, targets = problem(20)
    log_probs[3] = math.nan
    assert math.isnan(adaptive_ece(log_probs, targets, 4))
    assert math.isnan(reliability(log_probs, targets, 4).ece)


@pytest.mark.parametrize("function", [reliability, adaptive_reliability])
def test_no_bins(function):
    with pytest.raises(ValueError, match="bins=0"):
        function(*problem(5), bins=0)


def test_logits_are_refused():
    with pytest.raises(ValueError, match="pass log-probabilities"):
        fit_temperature(torch.tensor([[3.0, 1.0]]), torch.tensor([0]))


@pytest.mark.parametrize(
    ("value", "message"),
    [(LOG0, "1 targets have probability 0.*pass log_softmax"), (math.nan, "1 predictions are NaN.*look for the input")],
)
def test_a_temperature_cannot_be_fitted(value, message):
    log_probs = torch.tensor([[0.0, LOG0], [0.0, value]])
    with pytest.raises(ValueError, match=message):
        fit_temperature(log_probs, torch.tensor([0, 1]))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_bad_temperature(temperature):
    with pytest.raises(ValueError, match=f"temperature={temperature}"):
        calibrated(torch.zeros(1, 1), temperature)
