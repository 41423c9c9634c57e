import math

import pytest
import torch
from small_data import ALONE, made_up, network, state, trained

from bayesnorm.errors import DivergedError
from bayesnorm.train import lr_search
from bayesnorm.train.config import Config
from bayesnorm.train.lr_search import LrSearch, Trial, search


@pytest.fixture
def asked(monkeypatch):
    """A search over a function of the learning rate; returns it and the learning rates that were asked for."""
    seen = []

    def find(function, config=None, **options):
        def train(net, data, config, lr, world, stepped, stopping):
            seen.append(lr)
            return function(lr)

        monkeypatch.setattr(lr_search, "_train", train)
        return search(network("weight"), made_up(), config or Config(), ALONE, **options), seen

    return find


@pytest.mark.parametrize("best", [3e-4, 0.01, 0.3])
def test_the_minimum_of_a_parabola_in_log_lr_is_found(best, asked):
    found, seen = asked(lambda lr: 1 + math.log10(lr / best) ** 2)
    assert abs(math.log10(found.best / best)) < 0.05
    assert len(seen) == len(found.trials) <= 10
    assert all(1e-4 <= lr <= 1 for lr in seen)
    assert min(found.trials, key=lambda trial: trial.loss).lr == found.best


def test_the_bounds_are_kept(asked):
    found, seen = asked(lambda lr: lr, Config(lr_low=1e-3, lr_high=1e-2))
    assert min(seen) >= 1e-3
    assert found.best < 1.3e-3


@pytest.mark.parametrize("trials", [2, 3, 7])
def test_it_makes_no_more_trials_than_asked(trials, asked):
    assert trials - 1 <= len(asked(lambda lr: abs(math.log10(lr) + 1.234), Config(lr_trials=trials))[1]) <= trials


def test_one_trial_is_one_trial(asked):
    assert len(asked(lambda lr: lr, Config(lr_trials=1))[1]) == 1


@pytest.mark.parametrize("edge", [3e-4, 0.003, 0.1])
def test_divergence_counts_as_infinite_and_turns_the_search_to_smaller_steps(edge, asked):
    """The larger the step the better, up to an edge: the usual case of the deterministic norms."""
    found, _ = asked(lambda lr: 2 - math.log10(lr / 1e-4) / 4 if lr < edge else math.inf)
    assert edge / 3 < found.best < edge
    assert any(math.isinf(trial.loss) for trial in found.trials)


def test_a_loss_beyond_all_bounds_is_not_mistaken_for_a_good_one(asked):
    found, _ = asked(lambda lr: 1e30 if lr > 0.01 else 1.0)
    assert found.best <= 0.01


def test_divergence_everywhere_is_an_error_with_a_remedy(asked):
    with pytest.raises(DivergedError, match=r"between 0\.0001 and 1: pass a smaller --lr-low, or --clip 1"):
        asked(lambda lr: math.inf)


def test_known_trials_are_not_repeated(asked):
    def function(lr):
        return (math.log10(lr) + 1.7) ** 2

    whole, seen = asked(function)
    count = len(seen)
    for known in (1, 4, count):
        seen.clear()
        again, _ = asked(function, known=whole.trials[:known])
        assert again == whole
        assert seen == [trial.lr for trial in whole.trials[known:]]


def test_a_known_divergence_is_not_repeated(asked):
    whole, seen = asked(lambda lr: math.inf if lr > 0.02 else -math.log10(lr))
    seen.clear()
    again, _ = asked(lambda lr: pytest.fail("asked again"), known=whole.trials)
    assert again == whole
    assert not seen


def test_every_trial_is_reported_with_those_before_it(asked):
    calls = []
    found, _ = asked(lambda lr: abs(math.log10(lr) + 2), tried=calls.append)
    assert calls == [LrSearch(found.trials[: count + 1]) for count in range(len(found.trials))]


def test_best_of_trials_with_infinite_ones():
    trials = (Trial(1.0, math.inf), Trial(0.1, 2.0), Trial(0.01, 1.0), Trial(0.001, 1.5))
    assert LrSearch(trials).best == 0.01


def test_a_search_that_really_trains_leaves_the_network_alone_and_repeats_itself():
    net, data = network("analytic", "bayes"), made_up()
    config = Config(batch=12, lr_trials=3, lr_epochs=2, lr_high=100.0)
    before = state(net)
    first = search(net, data, config, ALONE)
    assert search(net, data, config, ALONE) == first
    assert all(torch.equal(before[name], value) for name, value in state(net).items())
    other = search(net, data, Config(batch=12, lr_trials=3, lr_epochs=2, lr_high=100.0, seed=1), ALONE)
    assert other != first, "the seed decides on the batches"


def test_a_trial_is_the_loss_of_its_last_epoch():
    data, config = made_up(), Config(batch=12, lr_trials=2, lr_epochs=3)
    found = search(network("weight", "bayes"), data, config, ALONE)
    trainer = trained(network("weight", "bayes"), data, config, found.trials[0].lr, 12)
    assert found.trials[0].loss == pytest.approx(trainer.sums["nll"] / 48, rel=1e-6)


def test_a_trial_that_diverges_is_infinite():
    net, data = network("weight", "bayes"), made_up()
    config = Config(batch=12, lr_low=1e-3, lr_high=1e30, lr_trials=2, lr_epochs=1, project=False)
    found = search(net, data, config, ALONE, known=(Trial(10 ** (-3 + 33 * (3 - 5**0.5) / 2), 1.0),))
    assert math.isinf(found.trials[1].loss)


def test_a_wish_to_stop_ends_the_search_after_a_step():
    asked = []

    def stopping():
        asked.append(None)
        return len(asked) == 6

    with pytest.raises(InterruptedError):
        search(network("weight"), made_up(), Config(batch=12), ALONE, stopping=stopping)
    assert len(asked) == 6
