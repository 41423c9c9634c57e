"""Scores against scikit-learn, scipy and cases by hand; streamed against whole."""

import math

import pytest
import torch
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import brier_score_loss
from torch import Tensor

from bayesnorm.evaluate import (
    Scores,
    ScoreTally,
    accuracy,
    brier,
    ece,
    entropy,
    max_probability,
    mutual_information,
    nll,
    reliability,
    uncertainty,
)

LOG0 = -math.inf


def problem(count: int = 300, classes: int = 5, space: tuple[int, ...] = (), seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, *space, generator=generator, dtype=torch.float64)
    return logits.log_softmax(1), torch.randint(classes, (count, *space), generator=generator)


def rows_of(log_probs: Tensor) -> Tensor:
    return log_probs.movedim(1, -1).flatten(0, -2)


@pytest.mark.parametrize("space", [(), (3, 4)])
@pytest.mark.parametrize("classes", [2, 5])
def test_brier_agrees_with_scikit_learn(space, classes):
    log_probs, targets = problem(100, classes, space)
    targets[::3] = -100
    kept = targets.flatten() != -100
    probs = rows_of(log_probs).exp()[kept].numpy()
    expected = brier_score_loss(targets.flatten()[kept].numpy(), probs, labels=range(classes), scale_by_half=False)
    assert brier(log_probs, targets) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("space", [(), (3, 4)])
def test_entropy_agrees_with_scipy(space):
    log_probs, _ = problem(50, 5, space)
    expected = torch.from_numpy(scipy_entropy(log_probs.exp().numpy(), axis=1))
    torch.testing.assert_close(entropy(log_probs), expected, rtol=1e-12, atol=1e-14)


def test_max_probability_by_hand():
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(max_probability(probs.log()), torch.tensor([0.75, 0.5, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("space", [(), (3, 4)])
def test_mutual_information_is_the_mean_divergence_from_the_mean(space):
    """MI = 1/K sum_k KL(p_k || mean p), another formula than the difference of entropies."""
    draws = torch.stack([problem(20, 5, space, seed)[0] for seed in range(6)])
    mean = draws.exp().mean(0)
    expected = torch.from_numpy(scipy_entropy(draws.exp().numpy(), mean.expand_as(draws).numpy(), axis=2)).mean(0)
    found = mutual_information(draws)
    assert found.shape == (20, *space)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_mutual_information_at_its_bounds():
    sure = torch.eye(4, dtype=torch.float64).log().unsqueeze(1)  # four draws, each sure of another class
    assert mutual_information(sure).item() == pytest.approx(math.log(4))
    one = problem(10)[0].unsqueeze(0)
    assert mutual_information(one).tolist() == [0.0] * 10
    agreeing = one.float().expand(7, -1, -1)
    assert mutual_information(agreeing).max().item() < 1e-6
    assert mutual_information(agreeing).min().item() >= 0


@pytest.mark.parametrize(
    ("log_probs", "targets", "expected"),
    [
        ([[0.0, LOG0], [LOG0, 0.0]], [0, 1], Scores(2, 0.0, 0.0)),
        ([[0.0, LOG0], [LOG0, 0.0]], [1, 0], Scores(2, 2.0, 0.0)),
        ([[0.0], [0.0]], [0, 0], Scores(2, 0.0, 0.0)),
        ([[math.log(0.25)] * 4], [3], Scores(1, 0.75**2 + 3 * 0.25**2, math.log(4))),
        ([[math.nan, math.nan], [0.0, LOG0]], [-100, 0], Scores(1, 0.0, 0.0)),
    ],
    ids=["sure-right", "sure-wrong", "one-class", "even", "ignored-nan"],
)
def test_corners(log_probs, targets, expected):
    tally = ScoreTally()
    tally.update(torch.tensor(log_probs), torch.tensor(targets))
    assert tally.compute() == pytest.approx(expected, abs=1e-7)


def test_streamed_and_merged_is_whole():
    log_probs, targets = problem(300, 5, (3,))
    targets[::7] = -100
    whole, first, second = ScoreTally(), ScoreTally(), ScoreTally()
    whole.update(log_probs, targets)
    for i, batch in enumerate(zip(log_probs.split(13), targets.split(13), strict=True)):
        (first if i % 2 else second).update(*batch)
    first.merge(second)
    first.merge(ScoreTally())
    assert first.compute() == pytest.approx(whole.compute(), rel=1e-12)
    assert whole.compute().entropy == pytest.approx(entropy(log_probs)[targets != -100].mean().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_taken_as_it_is(dtype):
    log_probs, targets = problem()
    low = log_probs.to(dtype)
    assert brier(low, targets) == pytest.approx(brier(low.double(), targets), rel=1e-5)


@pytest.mark.parametrize(
    ("log_probs", "targets", "message"),
    [
        (torch.zeros(2, 1), torch.full((2,), -100), "no targets.*add a batch"),
        (torch.tensor([[3.0, 1.0]]), torch.tensor([0]), "sum to 22.8.*pass log-probabilities"),
        (torch.tensor([[0.3, 0.7]]), torch.tensor([0]), "pass log-probabilities, not logits or probabilities"),
        (torch.tensor([[0.5, 0.5]]).log(), torch.tensor([2]), "1 targets are not a class"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), r"\(2, 3\).*\(3,\)"),
    ],
    ids=["ignored", "logits", "probabilities", "target", "shapes"],
)
def test_bad_input(log_probs, targets, message):
    with pytest.raises(ValueError, match=message):
        brier(log_probs, targets)


@pytest.mark.parametrize(
    "function",
    [
        lambda wrong, targets: nll(wrong, targets),
        lambda wrong, targets: ece(wrong, targets),
        lambda wrong, targets: accuracy(wrong, targets),
        lambda wrong, targets: reliability(wrong, targets),
        lambda wrong, targets: entropy(wrong),
        lambda wrong, targets: max_probability(wrong),
        lambda wrong, targets: uncertainty(wrong, "max_prob"),
        lambda wrong, targets: mutual_information(wrong[None]),
    ],
    ids=["nll", "ece", "accuracy", "reliability", "entropy", "max_probability", "uncertainty", "mutual_information"],
)
def test_logits_are_not_taken_for_log_probabilities(function):
    """Also those whose largest probability would be one."""
    log_probs, targets = problem()
    function(log_probs, targets)
    for wrong in (log_probs - 2, log_probs + 3, log_probs.exp()):
        with pytest.raises(ValueError, match="pass log-probabilities, not logits or probabilities"):
            function(wrong, targets)


def test_not_a_number_does_not_hide():
    assert math.isnan(brier(torch.full((1, 2), math.nan), torch.tensor([0])))


def test_even_predictions_of_many_classes_in_bfloat16():
    """log(1/C) is rounded by up to 1/32, the same way for all classes: that is no reason to take them for logits."""
    for classes in (10, 100, 983, 3000, 20_000):
        even = torch.zeros(3, classes, dtype=torch.bfloat16).log_softmax(1)
        exact = (1 - 1 / classes) ** 2 + (classes - 1) / classes**2
        assert brier(even, torch.tensor([0, 1, 2])) == pytest.approx(exact, abs=0.04 / classes)


def test_sums_of_very_many_do_not_stall():
    tally = ScoreTally()
    tally.update(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0]))
    tally.sums.mul_(10**10)
    tally.update(torch.tensor([[0.0, LOG0]]), torch.tensor([1]))
    assert tally.compute().count == 10**10 + 1
    assert tally.sums[1].item() == pytest.approx(0.5 * 10**10 + 2, rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision(dtype):
    log_probs = problem(50)[0].to(dtype)
    for function in (entropy, max_probability):
        torch.testing.assert_close(function(log_probs).double(), function(log_probs.double()), rtol=1e-5, atol=1e-6)
    draws = torch.stack([problem(20, seed=seed)[0] for seed in range(3)]).to(dtype)
    expected = mutual_information(draws.double())
    torch.testing.assert_close(mutual_information(draws).double(), expected, rtol=1e-4, atol=1e-6)


def test_bad_draws():
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(K, N, classes"):
        mutual_information(torch.zeros(3, 2))
