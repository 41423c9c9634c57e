"""Trainers that go on together: who is asked when, who leaves, and whose generator it is."""

import pytest
import torch
from small_data import ALONE, made_up, network, state, trained

from bayesnorm.errors import DivergedError
from bayesnorm.train.config import Config
from bayesnorm.train.lockstep import Turn, drained, stepping
from bayesnorm.train.trainer import Trainer

CPU = torch.device("cpu")


class Told:
    """A trainer that tells what it is asked; diverges at a step, or fails."""

    def __init__(self, name, story, diverges=0, fails=0):
        self.name, self.story, self.diverges, self.fails, self.taken = name, story, diverges, fails, 0

    def begin(self):
        self.story.append(f"begin {self.name}")

    def step(self, stop):
        self.story.append(f"step {self.name}")
        self.taken += 1
        if self.taken == self.fails:
            raise ZeroDivisionError
        if self.taken == self.diverges:
            raise DivergedError("too far")
        return stop

    def release(self):
        self.story.append(f"release {self.name}")


def told(lengths, stopping=lambda: False, **options):
    """The story of trainers that take so many steps each."""
    story = []
    trainers = {name: Told(name, story, **options.get(name, {})) for name in lengths}
    turns = {name: Turn(CPU) for name in lengths}

    def diverged(name, error):
        story.append(f"{name}: {error}")

    def stopped(name, trainer):
        story.append(f"stopped {name} after {trainer.taken}")

    raised = None
    try:
        drained(stepping(trainers, turns, lambda name, t: t.taken < lengths[name], diverged, stopping, stopped))
    except Exception as error:
        raised = type(error)
    return story, trainers, raised


def test_all_begin_before_one_is_looked_at_and_each_leaves_when_it_is_done():
    story, left, error = told({"a": 1, "b": 2})
    assert story == [
        *("begin a", "begin b", "step a", "release a", "step b"),
        *("begin b", "step b", "release b"),
    ]
    assert (left, error) == ({}, None)


def test_one_that_diverges_leaves_alone():
    story, left, error = told({"a": 2, "b": 2}, a={"diverges": 1})
    assert story == [
        *("begin a", "begin b", "step a", "a: too far", "release a", "step b"),
        *("begin b", "step b", "release b"),
    ]
    assert (left, error) == ({}, None)


def test_a_wish_to_stop_lets_the_steps_that_were_begun_end():
    asked = []

    def stopping():
        asked.append(None)
        return len(asked) == 1

    story, left, error = told({"a": 5, "b": 5, "c": 1}, stopping)
    assert story == [
        *("begin a", "begin b", "begin c", "step a", "step b", "step c", "release c"),
        *("stopped a after 1", "stopped b after 1", "release a", "release b"),
    ]
    assert (left, error) == ({}, InterruptedError)


def test_after_an_error_all_are_released():
    story, left, error = told({"a": 5, "b": 5}, a={"fails": 1})
    assert story == ["begin a", "begin b", "step a", "release a", "release b"]
    assert (left, error) == ({}, ZeroDivisionError)


def test_real_trainers_of_other_lengths_become_what_they_become_alone():
    data, config, rates = made_up(), Config(batch=8), {"short": 0.01, "long": 0.03}
    lengths = {"short": 2, "long": 5}
    nets = {name: network("analytic", "bayes") for name in rates}
    trainers = {name: Trainer(net, data, config, rates[name], ALONE) for name, net in nets.items()}
    turns = {name: Turn(CPU) for name in rates}
    drained(stepping(trainers, turns, lambda name, t: t.step_count < lengths[name], lambda name, _: pytest.fail(name)))
    for name, net in nets.items():
        expected = state(trained(network("analytic", "bayes"), data, config, rates[name], lengths[name]).net)
        assert all(torch.equal(value, expected[key]) for key, value in state(net).items())


def test_turns_have_generators_of_their_own():
    outer = torch.get_rng_state()
    drawn = {seed: [] for seed in (1, 2)}
    turns = {seed: Turn(CPU) for seed in drawn}
    for seed, turn in turns.items():
        with turn:
            torch.manual_seed(seed)
    for _ in range(3):
        for seed, turn in turns.items():
            with turn:
                drawn[seed].append(torch.rand(()).item())
    assert torch.equal(torch.get_rng_state(), outer)
    for seed, found in drawn.items():
        assert found == torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()
