"""All measures together, piece by piece, against the functions for each of them on the whole."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesnorm.evaluate import (
    Judgement,
    Panel,
    accuracy,
    adaptive_ece,
    brier,
    calibrated,
    ece,
    entropy,
    error_coverage,
    judge,
    nll,
    reliability,
)
from bayesnorm.evaluate import panel as panels
from bayesnorm.evaluate.panel import RISK, Predicted

SHAPES = {"images": (400,), "pixels": (12, 6, 7)}
each_kind = pytest.mark.parametrize("kind", SHAPES)


def predictions(kind: str, seed: int = 0, sharpness: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of four classes that are too sure of themselves, a mutual information, and targets.

    In pixels a third of the targets does not count.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = SHAPES[kind]
    logits = torch.randn(shape[0], 4, *shape[1:], generator=generator)
    log_probs = (sharpness * logits).log_softmax(1)
    targets = (logits + 0.6 * torch.randn(logits.shape, generator=generator)).argmax(1)
    if kind == "pixels":
        targets[torch.rand(shape, generator=generator) < 1 / 3] = panels.IGNORE
    return log_probs, torch.rand(shape, generator=generator), targets


def cut(whole: tuple[Tensor, Tensor | None, Tensor], size: int) -> list[Predicted]:
    log_probs, mutual, targets = whole
    starts = range(0, len(targets), size)
    return [
        (log_probs[i : i + size], None if mutual is None else mutual[i : i + size], targets[i : i + size])
        for i in starts
    ]


def judged(pieces: list[Predicted], temperature: float | None = None) -> Judgement:
    panel = Panel(temperature)
    for piece in pieces:
        panel.update(*piece)
    return panel.judge()


@each_kind
@pytest.mark.parametrize("size", [1000, 5])
def test_the_panel_says_what_the_functions_say_of_the_whole(kind: str, size: int) -> None:
    whole = predictions(kind)
    log_probs, mutual, targets = whole
    counted = targets != panels.IGNORE
    found = judged(cut(whole, size), 2.5)
    measures = found.measures
    assert measures.count == int(counted.sum())
    assert (kind == "images") == (measures.count == targets.numel())
    exact = {by: error_coverage(log_probs, targets, by) for by in ("entropy", "max_prob")}
    cooler = calibrated(log_probs, 2.5)
    expected = {
        "accuracy": accuracy(log_probs, targets),
        "nll": nll(log_probs, targets),
        "ece": ece(log_probs, targets),
        "brier": brier(log_probs, targets),
        "entropy": entropy(log_probs)[counted].double().mean().item(),
        "mutual_info": mutual[counted].double().mean().item(),
        "temperature": 2.5,
        "calibrated_nll": nll(cooler, targets),
        "calibrated_ece": ece(cooler, targets),
    }
    for name, value in expected.items():
        assert getattr(measures, name) == pytest.approx(value, rel=1e-5), name
    # The curves have 4096 bins: predictions in one bin are accepted together.
    assert measures.aurc == pytest.approx(exact["entropy"].aurc, rel=0.01)
    assert measures.excess_aurc == pytest.approx(exact["entropy"].excess_aurc, rel=0.02)
    assert measures.aurc_max_prob == pytest.approx(exact["max_prob"].aurc, rel=0.01)
    assert measures.adaptive_ece == pytest.approx(adaptive_ece(log_probs, targets), abs=0.01)
    assert measures.coverage_at_1 == pytest.approx(exact["entropy"].coverage_at(RISK), abs=0.01)
    assert (measures.iou is None) == (measures.dice is None) == (measures.design_effect is None) == (kind == "images")
    assert set(expected) | {"iou", "dice", "seg", "design_effect"} | {
        "count",
        "aurc",
        "excess_aurc",
        "aurc_max_prob",
        "adaptive_ece",
        "coverage_at_1",
    } == set(panels.NAMES), "every measure is compared"


@each_kind
def test_its_curves_are_those_of_the_whole(kind: str) -> None:
    whole = predictions(kind)
    log_probs, _, targets = whole
    found = judged(cut(whole, 5))
    bins = reliability(log_probs, targets)
    for name, value in vars(bins).items():
        torch.testing.assert_close(getattr(found.reliability, name), value, equal_nan=True, rtol=1e-6, atol=1e-9)
    for by, curve in (("entropy", found.by_entropy), ("max_prob", found.by_max_prob)):
        exact = error_coverage(log_probs, targets, by)
        points = dict(zip(exact.accepted.tolist(), exact.errors.tolist(), strict=True))
        assert all(
            points[n] == wrong for n, wrong in zip(curve.accepted.tolist(), curve.errors.tolist(), strict=True)
        ), "every point is one of the exact curve"
        assert len(curve.accepted) > 0.5 * len(exact.accepted)
    assert found.measures.aurc == found.by_entropy.aurc
    assert found.measures.aurc_max_prob == found.by_max_prob.aurc


def test_what_does_not_count_changes_nothing() -> None:
    whole = predictions("pixels")
    log_probs, mutual, targets = (value.clone() for value in whole)
    ignored = targets == panels.IGNORE
    log_probs.movedim(1, -1)[ignored] = torch.tensor([0.97, 0.01, 0.01, 0.01]).log()
    mutual[ignored] = math.nan
    assert judged([(log_probs, mutual, targets)], 1.5).measures == judged(cut(whole, 100), 1.5).measures


def test_without_draws_and_temperature_there_is_nothing_to_say_of_them() -> None:
    log_probs, _, targets = predictions("images")
    measures = judged([(log_probs, None, targets)]).measures
    assert measures.mutual_info is measures.temperature is None
    assert measures.calibrated_nll is measures.calibrated_ece is None


def test_nothing_and_nan_are_refused() -> None:
    log_probs, mutual, targets = predictions("images")
    with pytest.raises(ValueError, match="no targets"):
        Panel().judge()
    log_probs[3, 1] = math.nan
    with pytest.raises(ValueError, match="1 predictions are NaN"):
        judged([(log_probs, mutual, targets)])


# The temperature.


def best_temperature(log_probs: Tensor, targets: Tensor) -> float:
    """By ever finer grids: slow and plain."""
    rows = log_probs.movedim(1, -1)[targets != panels.IGNORE].double()
    classes = targets[targets != panels.IGNORE]
    low, high = math.log(0.05), math.log(20)
    for _ in range(12):
        grid = torch.linspace(low, high, 21, dtype=torch.float64)
        losses = [-(rows / t.exp()).log_softmax(1).gather(1, classes[:, None]).mean() for t in grid]
        best = int(torch.stack(losses).argmin())
        low, high = float(grid[max(0, best - 1)]), float(grid[min(20, best + 1)])
    return math.exp((low + high) / 2)


@each_kind
def test_the_temperature_is_that_of_the_validation_split(kind: str) -> None:
    splits = {"val": predictions(kind, 1), "test": predictions(kind, 2), "train": predictions(kind, 3, 1.0)}
    asked = []

    def predicted(name: str) -> list[Predicted]:
        asked.append(name)
        return cut(splits[name], 7)

    measures = judge(predicted).measures
    assert asked == ["val", "test"]
    temperature = best_temperature(splits["val"][0], splits["val"][2])
    assert measures.temperature == pytest.approx(temperature, rel=1e-6)
    log_probs, _, targets = splits["test"]
    counted = targets != panels.IGNORE
    scaled = (log_probs.double() / temperature).log_softmax(1).movedim(1, -1)[counted]
    picked = scaled.gather(1, targets[counted][:, None])
    assert measures.calibrated_nll == pytest.approx(-picked.mean().item(), rel=1e-5)
    assert measures.calibrated_nll < measures.nll, "they are too sure of themselves"
    assert judge(predicted, "train").measures.temperature == measures.temperature


def test_the_validation_split_is_not_calibrated_on_itself() -> None:
    whole = predictions("images")
    asked = []

    def predicted(name: str) -> list[Predicted]:
        asked.append(name)
        return cut(whole, 100)

    for options in ({"part": "val"}, {"part": "test", "calibrate": False}):
        measures = judge(predicted, **options).measures
        assert measures.temperature is measures.calibrated_nll is measures.calibrated_ece is None
    assert asked == ["val", "test"], "nor is it predicted for nothing"


def test_no_temperature_is_best_where_all_are_right() -> None:
    """The smaller, the better: what stands at the end of the search would ruin the test set."""
    targets = torch.arange(30) % 3
    log_probs = (2 * torch.nn.functional.one_hot(targets, 3).double()).log_softmax(1)
    measures = judge(lambda part: [(log_probs, None, targets)]).measures
    assert measures.temperature is measures.calibrated_nll is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda log_probs, targets: (log_probs, targets[100:]), r"\(300, 10\) and targets of shape \(200,\)"),
        (lambda log_probs, targets: (log_probs, targets[:, None]), r"targets of shape \(300, 1\)"),
        (lambda log_probs, targets: (log_probs, targets.int()), "targets of torch.int32"),
        (lambda log_probs, targets: (log_probs, targets + 1), "targets are not a class"),
        (lambda log_probs, targets: (log_probs + 3, targets), "pass log-probabilities, not logits"),
        (lambda log_probs, targets: (log_probs.exp(), targets), "not logits or probabilities"),
        (
            lambda log_probs, targets: (log_probs.where(targets[:, None] > 0, math.nan), targets),
            r"\d+ predictions are NaN",
        ),
    ],
    ids=["shifted", "column", "int32", "from 1", "logits", "probabilities", "NaN"],
)
def test_mistakes_in_the_validation_part_are_said(spoil: Any, message: str) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(300, 10, generator=generator).log_softmax(1)
    targets = torch.randint(0, 10, (300,), generator=generator)
    other, wrong = spoil(log_probs, targets)
    with pytest.raises(ValueError, match=message):
        judge(lambda part: [(log_probs, None, targets) if part == "test" else (other, None, wrong)])


def test_without_validation_targets_there_is_no_temperature() -> None:
    log_probs, targets = torch.zeros(3, 2).log_softmax(1), torch.tensor([0, 1, 1])
    for none in ([], [(log_probs, None, torch.full((3,), panels.IGNORE))]):
        measures = judge(lambda part, none=none: none if part == "val" else [(log_probs, None, targets)]).measures
        assert measures.temperature is None


def test_no_temperature_helps_where_a_target_has_probability_0() -> None:
    """On validation there is none; on the split that is judged the likelihood is infinite at every temperature."""
    log_probs = torch.tensor([[0.8, 0.2, 0.0], [0.5, 0.0, 0.5], [0.6, 0.4, 0.0]]).log()
    right, impossible = torch.tensor([0, 2, 1]), torch.tensor([0, 1, 1])
    measures = judge(lambda name: [(log_probs, None, impossible if name == "val" else right)]).measures
    assert measures.temperature is measures.calibrated_nll is None
    assert math.isfinite(measures.nll)
    measures = judge(lambda name: [(log_probs, None, impossible if name == "test" else right)]).measures
    assert measures.temperature is not None
    assert measures.nll == measures.calibrated_nll == math.inf
    assert math.isfinite(measures.brier)


@pytest.mark.parametrize("most", [37, 100, 399, 400])
@pytest.mark.parametrize("size", [1, 23, 400])
def test_of_many_validation_targets_evenly_spaced_ones_are_held(
    most: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "FITTED", most)
    log_probs, _, targets = predictions("images")
    rows, classes = panels._thinned(cut((log_probs, None, targets), size))
    apart = 2 ** math.ceil(math.log2(400 / most))
    assert len(rows) <= most
    assert torch.equal(rows, log_probs[::apart])
    assert torch.equal(classes, targets[::apart])


def test_of_many_pixels_those_that_count_are_evenly_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "FITTED", 50)
    log_probs, _, targets = whole = predictions("pixels")
    counted = targets != panels.IGNORE
    rows, classes = panels._thinned(cut((log_probs, None, targets), 2))
    assert torch.equal(rows, log_probs.movedim(1, -1)[counted][::8])
    assert torch.equal(classes, targets[counted][::8])
    measures = judge(lambda name: cut(whole, 2)).measures
    assert measures.temperature == pytest.approx(best_temperature(rows, classes), rel=1e-6)


def test_the_names_are_those_of_the_fields() -> None:
    measures = judged([predictions("images")]).measures
    assert tuple(dataclasses.asdict(measures)) == panels.NAMES
