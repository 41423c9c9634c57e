"""What holds for every metric of log-probabilities and targets, and for every tally."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayesnorm.evaluate import (
    ScoreTally,
    SelectiveTally,
    Tally,
    accuracy,
    adaptive_ece,
    adaptive_reliability_of,
    aurc,
    brier,
    calibrated_nll,
    ece,
    error_coverage,
    excess_aurc,
    fit_temperature,
    nll,
    reliability,
)

Metric = Callable[[Tensor, Tensor], float]


def streamed_adaptive_ece(log_probs: Tensor, targets: Tensor) -> float:
    tally = SelectiveTally("max_prob")
    tally.update(log_probs, targets)
    return adaptive_reliability_of(tally).ece


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "nll": nll,
    "ece": ece,
    "reliability": lambda log_probs, targets: reliability(log_probs, targets, 7).ece,
    "brier": brier,
    "adaptive ece": adaptive_ece,
    "adaptive ece, streamed": streamed_adaptive_ece,
    "temperature": fit_temperature,
    "calibrated nll": lambda log_probs, targets: calibrated_nll(log_probs, targets, 1.7),
    "aurc by entropy": aurc,
    "aurc by max_prob": lambda log_probs, targets: aurc(log_probs, targets, "max_prob"),
    "excess aurc": excess_aurc,
    "coverage": lambda log_probs, targets: error_coverage(log_probs, targets).coverage_at(0.3),
}
TALLIES = {
    "metrics": Tally,
    "scores": ScoreTally,
    "by entropy": SelectiveTally,
    "by max_prob": lambda: SelectiveTally("max_prob"),
}
each_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
each_tally = pytest.mark.parametrize("make", TALLIES.values(), ids=TALLIES)


def problem(count: int = 12, classes: int = 4, space: tuple[int, ...] = (5, 6)) -> tuple[Tensor, Tensor]:
    """Predictions that are right more often than not, some targets ignored."""
    generator = torch.Generator().manual_seed(count)
    targets = torch.randint(classes, (count, *space), generator=generator)
    logits = 2 * torch.randn(count, classes, *space, generator=generator, dtype=torch.float64)
    logits.scatter_add_(1, targets.unsqueeze(1), torch.full_like(logits[:, :1], 1.5))
    return logits.log_softmax(1), targets.masked_fill(torch.rand(targets.shape, generator=generator) < 0.2, -100)


@each_metric
def test_pixels_are_rows_in_any_order(metric: Metric) -> None:
    log_probs, targets = problem()
    rows, classes = log_probs.movedim(1, -1).flatten(0, -2), targets.flatten()
    expected = metric(log_probs, targets)
    assert metric(rows, classes) == pytest.approx(expected, rel=1e-9)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    assert metric(rows[order], classes[order]) == pytest.approx(expected, rel=1e-9)
    kept = classes != -100
    assert metric(rows[kept], classes[kept]) == pytest.approx(expected, rel=1e-9)


@each_metric
def test_strides_do_not_matter_and_bits_repeat(metric: Metric) -> None:
    log_probs, targets = problem()
    expected = metric(log_probs, targets)
    wide = torch.empty(12, 4, 5, 12, dtype=torch.float64)[..., ::2].copy_(log_probs)
    for view in (log_probs.to(memory_format=torch.channels_last), wide, log_probs.flip(3).flip(3)):
        assert metric(view, targets.mT.contiguous().mT) == pytest.approx(expected, rel=1e-12)
    assert metric(log_probs, targets) == expected


@each_metric
def test_what_is_passed_stays_as_it_is(metric: Metric) -> None:
    log_probs, targets = problem()
    before = log_probs.clone(), targets.clone()
    metric(log_probs.requires_grad_(), targets)
    assert torch.equal(log_probs, before[0])
    assert torch.equal(targets, before[1])
    assert log_probs.grad is None


@each_metric
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_is_taken_as_it_is(metric: Metric, dtype: torch.dtype) -> None:
    log_probs, targets = problem()
    low = log_probs.to(dtype)
    assert metric(low, targets) == pytest.approx(metric(low.double(), targets), rel=1e-4, abs=1e-6)


@each_metric
def test_nothing_counts(metric: Metric) -> None:
    log_probs, targets = problem()
    with pytest.raises(ValueError, match=r"no targets.*ignore_index=-100; add a batch"):
        metric(log_probs, torch.full_like(targets, -100))


CERTAIN: dict[str, tuple[float, float]] = {
    "accuracy": (1.0, 0.0),
    "nll": (0.0, math.inf),
    "ece": (0.0, 1.0),
    "reliability": (0.0, 1.0),
    "brier": (0.0, 2.0),
    "adaptive ece": (0.0, 1.0),
    "adaptive ece, streamed": (0.0, 1.0),
    "calibrated nll": (0.0, math.inf),
    "aurc by entropy": (0.0, 1.0),
    "aurc by max_prob": (0.0, 1.0),
    "excess aurc": (0.0, 0.0),
    "coverage": (1.0, 0.0),
}
"""Of predictions with probabilities of 0 and 1: all right, all wrong. No temperature fits the latter."""


@pytest.mark.parametrize("name", CERTAIN)
@pytest.mark.parametrize("count", [1, 5])
def test_all_right_and_all_wrong_with_certainty(name: str, count: int) -> None:
    guess = torch.arange(count) % 3
    log_probs = torch.nn.functional.one_hot(guess, 3).float().log()
    right, wrong = CERTAIN[name]
    assert METRICS[name](log_probs, guess) == pytest.approx(right, abs=1e-12)
    assert METRICS[name](log_probs, (guess + 1) % 3) == pytest.approx(wrong, abs=1e-12)


@each_tally
def test_memory_does_not_grow_with_the_images(make: Callable[[], Tally | ScoreTally | SelectiveTally]) -> None:
    tally = make()

    def held() -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in vars(tally).items() if isinstance(value, Tensor)}

    before, names = held(), sorted(vars(tally))
    for count in (1, 2, 40):
        tally.update(*problem(count))
    assert held() == before
    assert sorted(vars(tally)) == names
    assert not any(isinstance(value, (list, dict, set)) for value in vars(tally).values())
    storages = [value.untyped_storage().nbytes() for value in vars(tally).values() if isinstance(value, Tensor)]
    assert sum(storages) <= 3 * 8 * (4096 + 2)  # none is a view of a batch


@each_tally
def test_an_update_repeats_bitwise_and_keeps_no_gradient(
    make: Callable[[], Tally | ScoreTally | SelectiveTally],
) -> None:
    log_probs, targets = problem()
    first, second = make(), make()
    for tally in (first, second):
        tally.update(log_probs.requires_grad_(), targets)
    assert torch.equal(first.sums, second.sums)
    assert not first.sums.requires_grad
    empty = first.sums.clone()
    first.update(log_probs[:0], targets[:0])
    assert torch.equal(first.sums, empty)
