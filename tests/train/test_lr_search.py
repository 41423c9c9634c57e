"""The search over functions of the learning rate, and over real training; one trial at a time, and a round at once."""

import math
from types import SimpleNamespace

import pytest
import torch
from small_data import ALONE, made_up, network, state, trained
from torch import nn

from bayesnorm.errors import DivergedError
from bayesnorm.train import lr_search
from bayesnorm.train.config import Config
from bayesnorm.train.engine import make_trainer
from bayesnorm.train.events import Tried, Trying
from bayesnorm.train.lockstep import drained
from bayesnorm.train.lr_search import TOGETHER, LrSearch, Trial, next_round, searching
from bayesnorm.train.numerics import numerics
from bayesnorm.train.world import World


def search(*training, **options) -> LrSearch:
    """Alone, to its end."""
    return drained(searching(*training, **options))


class Fake:
    """A trainer of three steps an epoch whose loss is a function of its learning rate; where infinite, it diverges."""

    def __init__(self, lr, loss):
        self.lr, self.loss, self.world = lr, loss, ALONE
        self.batches, self.epoch, self.batch = range(3), 0, 0
        self.sums = {"count": 1.0, "nll": loss}
        self.released = False

    step_count = property(lambda self: 3 * self.epoch + self.batch)
    running_loss = property(lambda self: self.loss)

    def begin(self):
        assert not self.released

    def step(self, stop):
        if math.isinf(self.loss):
            raise DivergedError("diverged")
        self.batch += 1
        return stop

    def next_epoch(self):
        self.epoch, self.batch = self.epoch + 1, 0

    def release(self):
        self.released = True


@pytest.fixture(params=[1, TOGETHER], ids=["one by one", "side by side"])
def at_once(request, monkeypatch):
    """How many trials are trained at once."""
    monkeypatch.setattr(lr_search, "_at_once", lambda world: request.param)
    return request.param


@pytest.fixture
def asked(monkeypatch, at_once):
    """A search over a function of the learning rate; returns it and the trainers that were made."""

    def find(function, config=None, **options):
        made = find.made = []

        def make(net, data, config, lr, world, dock=None):
            made.append(Fake(lr, function(lr)))
            return made[-1]

        monkeypatch.setattr(lr_search, "make_trainer", make)
        found = search(nn.Linear(1, 1), None, config or Config(), ALONE, **options)
        return found, [fake.lr for fake in made]

    return find


# Where the search goes.


def bracket(found, config):
    """The neighbours of the best trial, or the bounds, as exponents."""
    tested = sorted([math.log10(trial.lr) for trial in found.trials])
    ends = [math.log10(config.lr_low), *tested, math.log10(config.lr_high)]
    place = 1 + tested.index(math.log10(found.best))
    return ends[place - 1], ends[place + 1]


@pytest.mark.parametrize("slope", [1.0, 0.2, 30.0])
@pytest.mark.parametrize(("trials", "cuts"), [(4, 5), (8, 5 * 3), (10, 5 * 3 * 2), (12, 5 * 3 * 3)])
def test_the_minimum_lies_in_a_bracket_that_every_round_makes_smaller(trials, cuts, slope, asked):
    """Four decades in five parts; two trials on either side cut each into three, one cuts it into two."""
    config = Config(lr_trials=trials)
    for number in range(41):
        best = -4 + number / 10
        found, _ = asked(lambda lr, at=best: (d := math.log10(lr) - at) * (slope if d > 0 else -1), config)
        below, above = bracket(found, config)
        assert below - 1e-9 <= best <= above + 1e-9
        assert above - below == pytest.approx(2 * 4 / cuts)


@pytest.mark.parametrize("best", [3e-4, 0.01, 0.3])
def test_the_minimum_of_a_parabola_in_log_lr_is_found(best, asked):
    found, seen = asked(lambda lr: 1 + math.log10(lr / best) ** 2)
    assert abs(math.log10(found.best / best)) <= 4 / 30 / 2, "half of the distance of the last trials"
    assert seen == [trial.lr for trial in found.trials]
    assert min(found.trials, key=lambda trial: trial.loss).lr == found.best


@pytest.mark.parametrize(("sign", "end"), [(1, 1e-3), (-1, 1e-2)])
def test_a_minimum_at_a_bound_is_approached_and_the_bounds_are_kept(sign, end, asked):
    found, seen = asked(lambda lr: sign * lr, Config(lr_low=1e-3, lr_high=1e-2))
    assert 1e-3 < min(seen) < max(seen) < 1e-2
    assert abs(math.log10(found.best / end)) == pytest.approx(1 / 30)


@pytest.mark.parametrize("function", [lambda x: (x + 1.234) ** 2, lambda x: x, lambda x: 1.0, lambda x: max(x, -2)])
@pytest.mark.parametrize("trials", range(1, 14))
def test_it_makes_as_many_trials_as_asked_all_of_them_different(trials, function, asked):
    found, seen = asked(lambda lr: function(math.log10(lr)), Config(lr_trials=trials))
    assert len(found.trials) == len({round(math.log10(lr), 6) for lr in seen}) == trials


def test_one_trial_is_in_the_middle(asked):
    assert asked(lambda lr: lr, Config(lr_trials=1))[1] == pytest.approx([0.01])


def test_bounds_next_to_each_other_are_searched_as_well(asked):
    found, _ = asked(lambda lr: lr, Config(lr_low=0.1, lr_high=math.nextafter(0.1, 1)))
    assert len(found.trials) == 10
    assert found.best == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("losses", "count", "expected"),
    [
        ({}, 1, [-2.0]),
        ({}, 3, [-3.0, -2.0, -1.0]),
        ({-3.0: 2.0, -2.0: 1.0, -1.0: 3.0}, 4, [-8 / 3, -7 / 3, -5 / 3, -4 / 3]),
        ({-3.0: 2.0, -2.0: 1.0, -1.0: 3.0}, 3, [-8 / 3, -7 / 3, -1.5]),
        ({-3.5: 2.0, -2.0: 1.0, -1.5: 3.0}, 3, [-3.125, -2.75, -2.375]),  # the wide part first
        ({-3.0: 1.0, -2.0: 2.0}, 2, [-3.5, -2.5]),
        ({-3.0: 3.0, -2.0: 2.0}, 2, [-2.5, -1.0]),
        ({-3.0: math.inf, -2.0: math.inf}, 3, [-3.75, -3.5, -3.25]),  # all below
        ({-3.0: 1.0, -2.0: math.inf}, 2, [-3.5, -2.5]),
        ({-3.0: 1.0, -2.0: 1.0}, 2, [-3.5, -2.5]),  # of equals the smaller
    ],
)
def test_rounds_by_hand(losses, count, expected):
    assert next_round(losses, Config(), count) == pytest.approx(expected)


# Divergence.


@pytest.mark.parametrize("edge", [1.2e-4, 3e-4, 0.003, 0.1])
def test_divergence_counts_as_infinite_and_turns_the_search_to_smaller_steps(edge, asked):
    """The larger the step the better, up to an edge: the usual case of the deterministic norms."""
    found, _ = asked(lambda lr: 2 - math.log10(lr / 1e-4) / 4 if lr < edge else math.inf)
    assert edge / 10 ** (4 / 30) <= found.best < edge
    assert any(math.isinf(trial.loss) for trial in found.trials)
    assert len(found.trials) == 10


def test_divergence_everywhere_is_an_error_with_a_remedy(asked):
    with pytest.raises(DivergedError, match=r"between 0\.0001 and 1: pass a smaller --lr-low, or --clip 1"):
        asked(lambda lr: math.inf)


def test_best_of_trials_with_infinite_and_equal_ones():
    trials = (Trial(1.0, math.inf), Trial(0.1, 2.0), Trial(0.01, 1.0), Trial(0.001, 1.5))
    assert LrSearch(trials).best == 0.01
    assert LrSearch((*trials, Trial(0.002, 1.0))).best == 0.002


# What is known, and what is told.


def wavy(lr):
    """The largest steps diverge."""
    return math.inf if lr > 0.1 else (math.log10(lr) + 1.7) ** 2


def test_known_trials_are_not_repeated_whichever_were_over_first(asked):
    calls, events = [], []
    whole, seen = asked(wavy)
    count = len(seen)
    for known in ([0], [3], [2, 3], [3, 0, 1], range(4), [0, 1, 2, 3, 7], range(9), range(count)):
        calls.clear()
        events.clear()
        kept = tuple(whole.trials[number] for number in known)
        again, seen = asked(wavy, known=kept, tried=calls.append, emit=events.append)
        assert again == whole
        assert seen == [trial.lr for trial in whole.trials if trial not in kept]
        assert len(calls) == count - len(kept)
        assert all(set(kept) & set(whole.trials[:4]) <= set(found.trials) for found in calls)
        assert {e.trial: (e.lr, e.loss) for e in events if isinstance(e, Tried)} == {
            number: (trial.lr, trial.loss) for number, trial in enumerate(whole.trials, 1)
        }


def test_trials_of_another_search_are_no_use(asked):
    found, seen = asked(wavy, known=(Trial(0.0123, -5.0),))
    assert len(seen) == len(found.trials) == 10
    assert found == asked(wavy)[0]


def test_every_trial_is_reported_as_soon_as_it_is_over(asked, at_once):
    calls, events = [], []
    found, _ = asked(wavy, tried=calls.append, emit=events.append)
    over = [event.trial for event in events if isinstance(event, Tried)]
    assert [len(call.trials) for call in calls] == list(range(1, 11))
    for count, call in enumerate(calls, 1):
        assert call.trials == tuple(found.trials[number - 1] for number in sorted(over[:count])), "in order"
    assert math.isinf(found.trials[3].loss)
    assert over[:4] == ([1, 2, 3, 4] if at_once == 1 else [4, 1, 2, 3]), "that which diverges is over first"
    assert calls[-1] == found


def test_steps_are_told_with_the_number_of_their_trial(asked, at_once):
    events = []
    found, _ = asked(lambda lr: 1 + lr, Config(lr_trials=6, lr_epochs=2), emit=events.append)
    steps = [event for event in events if isinstance(event, Trying)]
    for number, trial in enumerate(found.trials, 1):
        mine = [event for event in steps if event.trial == number]
        assert [event.done for event in mine] == pytest.approx([i / 6 for i in range(1, 7)])
        assert {(event.trials, event.lr, event.loss) for event in mine} == {(6, trial.lr, trial.loss)}
    assert [event.trial for event in steps[:8]] == ([1] * 6 + [2] * 2 if at_once == 1 else [1, 2, 3, 4] * 2)


def test_a_wish_to_stop_ends_the_search_when_what_had_begun_is_finished(asked, at_once):
    steps, calls = [], []

    def stopping():
        steps.append(None)
        return len(steps) == 14

    with pytest.raises(InterruptedError):
        asked(lambda lr: lr, Config(lr_epochs=1), stopping=stopping, tried=calls.append)
    # Three steps a trial: one by one, the fifth is in its second; side by side, so are the second four.
    assert len(steps) == (14 if at_once == 1 else 16)
    assert len(calls) == 4
    assert all(fake.released for fake in asked.made)


def test_a_trial_whose_last_step_is_stopped_is_kept(asked, at_once):
    steps, calls = [], []

    def stopping():
        steps.append(None)
        return len(steps) == 3 * at_once

    with pytest.raises(InterruptedError):
        asked(lambda lr: lr, Config(lr_epochs=1), stopping=stopping, tried=calls.append)
    assert len(calls[-1].trials) == at_once


def test_trainers_are_released_also_after_an_error(asked):
    def wrong(event):
        if isinstance(event, Trying) and event.done > 0.2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asked(lambda lr: lr, emit=wrong)
    assert all(fake.released for fake in asked.made)


def test_a_round_is_trained_at_once_on_one_cuda_device_alone():
    device = SimpleNamespace(type="cuda")
    assert lr_search._at_once(World(0, 1, device)) == TOGETHER
    assert lr_search._at_once(World(0, 2, device)) == lr_search._at_once(ALONE) == 1


# Real training.


def test_a_search_that_really_trains_leaves_the_network_alone_and_repeats_itself(at_once):
    net, data = network("analytic", "bayes"), made_up()
    config = Config(batch=12, lr_trials=3, lr_epochs=2, lr_high=100.0)
    before, generator = state(net), torch.get_rng_state()
    first = search(net, data, config, ALONE)
    assert search(net, data, config, ALONE) == first
    assert all(torch.equal(before[name], value) for name, value in state(net).items())
    assert torch.equal(torch.get_rng_state(), generator)
    other = search(net, data, Config(batch=12, lr_trials=3, lr_epochs=2, lr_high=100.0, seed=1), ALONE)
    assert other != first, "the seed decides on the batches"


class Dropping(nn.Module):
    """Draws from torch's own generator."""

    def __init__(self):
        super().__init__()
        self.inner = network("analytic", "bayes")

    def forward(self, x):
        return self.inner(nn.functional.dropout(x, 0.5, self.training))


def alone(net, data, config, lr):
    """The loss of the last epoch of a network that is trained alone."""
    torch.manual_seed(config.seed)
    trainer = make_trainer(net, data, config, lr, ALONE)
    for epoch in range(config.lr_epochs):
        if epoch:
            trainer.next_epoch()
        while trainer.batch < len(trainer.batches):
            trainer.step()
    return trainer.sums["nll"] / trainer.sums["count"]


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_every_trial_is_bitwise_what_it_would_be_alone(engine, at_once):
    data = made_up(train=50)  # a short last batch
    config = Config(batch=12, lr_trials=6, lr_epochs=2, lr_high=0.1, engine=engine, seed=3)
    found = search(Dropping(), data, config, ALONE)
    assert len({trial.loss for trial in found.trials}) == 6
    for trial in found.trials:
        assert trial.loss == alone(Dropping(), data, config, trial.lr)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_on_cuda_a_round_at_once_is_bitwise_its_trials_one_by_one(engine, monkeypatch):
    device = torch.device("cuda")
    data, world = made_up(train=50).to(device), World(0, 1, device)
    config = Config(batch=12, lr_trials=6, lr_epochs=2, lr_high=0.1, engine=engine, seed=3)
    net = Dropping().to(device)
    with numerics(config, device):
        together = search(net, data, config, world)
        monkeypatch.setattr(lr_search, "_at_once", lambda world: 1)
        assert search(net, data, config, world) == together
    assert len({trial.loss for trial in together.trials}) == 6


def test_a_trial_is_the_loss_of_its_last_epoch():
    data, config = made_up(), Config(batch=12, lr_trials=2, lr_epochs=3)
    found = search(network("weight", "bayes"), data, config, ALONE)
    trainer = trained(network("weight", "bayes"), data, config, found.trials[0].lr, 12)
    assert found.trials[0].loss == pytest.approx(trainer.sums["nll"] / 48, rel=1e-6)


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_a_trial_that_diverges_is_infinite_and_the_others_go_on(engine, at_once):
    data = made_up()
    config = Config(batch=12, lr_low=1e-12, lr_high=1e38, lr_trials=4, lr_epochs=1, project=False, engine=engine)
    found = search(network("weight", "bayes"), data, config, ALONE)
    assert [trial.lr for trial in found.trials] == pytest.approx([1e-2, 1e8, 1e18, 1e28])
    assert [trial.loss for trial in found.trials[1:]] == [math.inf] * 3
    assert found.trials[0].loss == alone(network("weight", "bayes"), data, config, found.best)
