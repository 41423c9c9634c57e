"""Reliability and temperature against scikit-learn, scipy and cases by hand."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.calibration import calibration_curve
from torch import Tensor

from bayesnorm.evaluate import (
    Tally,
    accuracy,
    adaptive_ece,
    adaptive_reliability,
    calibrated,
    calibrated_nll,
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


@pytest.mark.parametrize(("value", "message"), [(LOG0, "1 targets have probability 0"), (math.nan, "NaN")])
def test_a_temperature_cannot_be_fitted(value, message):
    log_probs = torch.tensor([[0.0, LOG0], [0.0, value]])
    with pytest.raises(ValueError, match=f"{message}.*pass log_softmax"):
        fit_temperature(log_probs, torch.tensor([0, 1]))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_bad_temperature(temperature):
    with pytest.raises(ValueError, match=f"temperature={temperature}"):
        calibrated(torch.zeros(1, 1), temperature)
