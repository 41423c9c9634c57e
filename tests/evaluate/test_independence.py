"""The design effect: 1 for pixels that err independently, the size of the groups that err together."""

import math

import pytest
import torch
from small_data import made_up, network
from torch import Tensor

from bayesnorm.data.base import IGNORE
from bayesnorm.evaluate import IndependenceTally, evaluate

Z = 5.0


def drawn(images: int, side: int, block: int, seed: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Random predictions, and targets drawn from them: one draw, and one prediction, for each block of pixels."""
    generator = torch.Generator().manual_seed(seed)
    coarse = side // block
    logits = torch.randn(images, classes, coarse, coarse, generator=generator, dtype=torch.float64)
    rows = logits.softmax(1).movedim(1, -1).reshape(-1, classes)
    targets = torch.multinomial(rows, 1, generator=generator).view(images, coarse, coarse)
    spread = torch.ones(block, block, dtype=torch.float64)
    return torch.kron(logits.log_softmax(1), spread), torch.kron(targets, spread.long())


def effect(log_probs: Tensor, targets: Tensor, piece: int = 1000) -> float:
    tally = IndependenceTally()
    for said, true in zip(log_probs.split(piece), targets.split(piece), strict=True):
        tally.update(said, true)
    found = tally.compute()
    assert found is not None
    return found


def by_hand(log_probs: Tensor, targets: Tensor) -> float:
    """Pixel by pixel."""
    together = apart = 0.0
    for said, true in zip(log_probs.exp().double(), targets, strict=True):
        total = torch.zeros(said.size(0), dtype=torch.float64)
        for place in (true != IGNORE).nonzero():
            residual = -said[(slice(None), *place)]
            residual[true[tuple(place)]] += 1
            total += residual
            apart += float(residual.square().sum())
        together += float(total.square().sum())
    return together / apart


@pytest.mark.parametrize("block", [1, 2, 4])
def test_it_is_the_number_of_pixels_that_err_together(block: int) -> None:
    """A sum of many residuals is about normal, so its square varies as chi-square: at most by twice, an image."""
    images = 400
    found = effect(*drawn(images, 24, block))
    assert found == pytest.approx(block**2, abs=Z * block**2 * math.sqrt(2 / images))
    other = effect(*drawn(images, 24, 2 * block))
    assert other > 2 * block**2, "the test tells them apart"


def test_it_is_what_the_definition_says() -> None:
    log_probs, targets = drawn(5, 6, 2)
    targets = targets.masked_fill(torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)) < 0.2, IGNORE)
    assert effect(log_probs, targets) == pytest.approx(by_hand(log_probs, targets), rel=1e-12)
    assert effect(log_probs, targets, 2) == pytest.approx(effect(log_probs, targets), rel=1e-12)


def test_pixels_that_do_not_count_may_predict_anything() -> None:
    log_probs, targets = drawn(5, 6, 2)
    targets[:, 0] = IGNORE
    wild = log_probs.clone()
    wild[:, :, 0] = torch.tensor([0.0, -math.inf, -math.inf], dtype=torch.float64)[:, None]
    assert effect(wild, targets) == effect(log_probs, targets)
    wild[:, :, 0] = math.nan
    assert effect(wild, targets) == effect(log_probs, targets)


def test_a_class_can_be_the_one_that_does_not_count() -> None:
    log_probs, targets = drawn(5, 6, 2)
    tally = IndependenceTally(ignore_index=2)
    tally.update(log_probs, targets)
    assert tally.compute() == effect(log_probs, targets.masked_fill(targets == 2, IGNORE))


def test_targets_of_another_shape_are_refused() -> None:
    log_probs, targets = drawn(5, 6, 2)
    with pytest.raises(ValueError, match="pass \\(N, classes, \\*space\\)"):
        IndependenceTally().update(log_probs, targets[:, :-1])


def test_an_image_that_is_wrong_as_a_whole_counts_once() -> None:
    log_probs = torch.tensor([0.9, 0.1]).log()[None, :, None, None].expand(3, 2, 4, 5)
    assert effect(log_probs, torch.ones(3, 4, 5, dtype=torch.int64)) == pytest.approx(20)


def test_of_perfect_predictions_it_is_unknown() -> None:
    tally = IndependenceTally()
    assert tally.compute() is None
    tally.update(torch.tensor([0.0, -math.inf])[None, :, None].expand(2, 2, 3), torch.zeros(2, 3, dtype=torch.int64))
    assert tally.compute() is None


def test_an_evaluation_of_pixels_has_it() -> None:
    data, net = made_up(pixels=True), network("weight", pixels=True)
    found = evaluate(net, data, samples=0)["single"].measures.design_effect
    with torch.no_grad():
        log_probs = net.eval()(data.standardized(data.test.images)).log_softmax(1)
    assert found == pytest.approx(by_hand(log_probs, data.test.targets), rel=1e-4)
    assert evaluate(network("weight"), made_up(), samples=0)["single"].measures.design_effect is None
