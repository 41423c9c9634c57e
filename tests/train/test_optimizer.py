import pytest
import torch
import torch.nn.functional as F
from small_data import made_up, network
from torch import nn

from bayesnorm.train.config import Config
from bayesnorm.train.optimizer import Schedule, make_optimizer, state_tensors

STEPS = 4


def test_the_learning_rate_is_constant_within_an_epoch_and_falls_by_g():
    config = Config(epochs=1200)
    schedule = Schedule(config, 0.1, STEPS)
    for epoch in (0, 1, 7, 600, 1199):
        for step in range(STEPS):
            assert schedule.rate(epoch * STEPS + step) == pytest.approx(0.1 * 0.1 ** (epoch / 600), rel=1e-9)
    assert schedule.rate(600 * STEPS) == pytest.approx(0.01, rel=1e-9)


def test_warmup_rises_linearly_and_ends():
    schedule = Schedule(Config(epochs=1000, warmup_steps=10), 1.0, steps=100)
    assert [schedule.rate(step) for step in range(12)] == pytest.approx([*[0.1 * i for i in range(1, 11)], 1.0, 1.0])
    long = Schedule(Config(epochs=2, warmup_steps=6), 1.0, steps=4)
    assert long.rate(4) == pytest.approx(5 / 6 * 0.1), "decay and warm-up multiply"


def test_the_factor_of_the_kl_rises_over_epochs():
    schedule = Schedule(Config(kl_factor=2.0, kl_warmup=2.5), 1.0, STEPS)
    assert [schedule.kl_factor(step) for step in (0, 1, 5, 10, 99)] == pytest.approx([0.0, 0.2, 1.0, 2.0, 2.0])
    assert Schedule(Config(kl_factor=0.1), 1.0, STEPS).kl_factor(0) == 0.1


@pytest.mark.parametrize(("optimizer", "factor"), [("sgd", 100.0), ("adam", 1.0)])
def test_every_group_gets_its_step(optimizer, factor):
    net = network("weight", "bayes")
    config = Config(optimizer=optimizer, epochs=2)
    made = make_optimizer(net, config, 0.01)
    assert Schedule(config, 0.01, STEPS).set_(made, STEPS) == pytest.approx(1e-3)
    found = {group["name"]: group["lr"] for group in made.param_groups}
    assert found == pytest.approx({"weights": 1e-3, "scales": 1e-3, "variances": factor * 1e-3})
    assert all(group["weight_decay"] == 0 for group in made.param_groups)
    in_groups = [p for group in made.param_groups for p in group["params"]]
    assert {id(p) for p in in_groups} == {id(p) for p in net.parameters()}
    variances = next(group["params"] for group in made.param_groups if group["name"] == "variances")
    assert {id(p) for p in variances} == {id(p) for name, p in net.named_parameters() if name.endswith("scale.u")}


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_state_of_zeros_changes_no_step(name):
    """The optimizers of torch start without a state; here it is there from the start."""
    ours, theirs = network(None), network(None)
    config = Config(optimizer=name)
    first = make_optimizer(ours, config, 0.05)
    kind = torch.optim.SGD if name == "sgd" else torch.optim.Adam
    options = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    second = kind(theirs.parameters(), 0.05, **options)
    data = made_up()
    for _ in range(4):
        for net, optimizer in ((ours, first), (theirs, second)):
            optimizer.zero_grad()
            F.cross_entropy(net(data.train.images), data.train.targets).backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("name", "keys"), [("sgd", {"momentum_buffer"}), ("adam", {"step", "exp_avg", "exp_avg_sq"})])
def test_the_state_has_the_names_of_the_parameters_before_and_after_a_step(name, keys):
    net = network("analytic", "bayes")
    optimizer = make_optimizer(net, Config(optimizer=name), 0.01)
    expected = {f"optimizer.{parameter}.{key}" for parameter, _ in net.named_parameters() for key in keys}
    before = state_tensors(net, optimizer)
    assert set(before) == expected
    assert all((value == 0).all() for value in before.values())
    net(made_up().train.images).sum().backward()
    optimizer.step()
    after = state_tensors(net, optimizer)
    assert set(after) == expected
    assert any((value != 0).any() for value in after.values())


def test_nothing_to_train_is_refused():
    net = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        make_optimizer(net, Config(), 0.1)
