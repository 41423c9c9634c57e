import copy
import dataclasses
import math
import shutil

import pytest
import torch
import torch.nn.functional as F
from small_data import ALONE, difference, made_up, network, state, trained
from torch import nn

import bayesnorm
from bayesnorm.data.augment import Augment
from bayesnorm.data.base import IGNORE, Split
from bayesnorm.data.batches import Batches
from bayesnorm.data.passes import images_of
from bayesnorm.errors import DivergedError
from bayesnorm.evaluate import evaluate
from bayesnorm.layers import norm_layers
from bayesnorm.train.config import Config
from bayesnorm.train.trainer import Trainer

MEMBERS = [
    (None, "point"),
    *[(norm, scale) for norm in ("batch", "weight", "analytic") for scale in ("point", "noise", "bayes")],
]
MOVES = Augment(shift=1, hflip=True)


# The slow, obvious version of training: formulas as the method states them, torch's own optimizers, plain tensors.


def divergence_by_hand(net):
    total = torch.zeros((), dtype=torch.float64)
    for name, u in net.named_parameters():
        if name.endswith("scale.u"):
            s = net.get_parameter(name.removesuffix("u") + "s").double()
            sigma = torch.where(u < 0, u.clamp(max=0).double().exp(), 1 + u.double())
            total = total + (0.5 * (math.log(10.0**2) - (sigma**2).log() + (sigma**2 + (s - 1) ** 2) / 10**2 - 1)).sum()
    return total


@torch.no_grad()
def project_by_hand(net, weights):
    for name, parameter in net.named_parameters():
        if name.endswith("scale.u"):
            parameter.clamp_(-10, 1000)
            net.get_parameter(name.removesuffix("u") + "s").clamp_(min=1e-8)
        elif weights and name.removesuffix("weight") + "scale.s" in dict(net.named_parameters()):
            length = parameter.flatten(1).double().norm(dim=1).view(-1, *[1] * (parameter.dim() - 1))
            parameter.copy_((parameter.double() / length).float())


def optimizer_by_hand(net, config, lr):
    slow = [p for name, p in net.named_parameters() if not name.endswith("scale.u")]
    fast = [p for name, p in net.named_parameters() if name.endswith("scale.u")]
    groups = [{"params": slow, "lr": lr}, {"params": fast, "lr": lr * (100 if config.optimizer == "sgd" else 1)}]
    if config.optimizer == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, momentum=config.momentum, nesterov=True)


def train_by_hand(net, data, config, lr, steps):
    """Parameters after ``steps`` steps, and the loss of each."""
    optimizer = optimizer_by_hand(net, config, lr)
    batches = Batches(data, config.batch, config.seed)
    first = [group["lr"] for group in optimizer.param_groups]
    counted = len(data.train) * (data.train.targets[0].numel() if data.per_pixel else 1)
    losses = []
    for step in range(steps):
        epoch, index = divmod(step, len(batches))
        decay = 0.1 ** (epoch / (config.epochs / 2)) * min(1, (step + 1) / max(1, config.warmup_steps))
        for group, start in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = start * decay
        batch = batches(epoch, index)
        net.train()
        log_probs = net(batch.images).log_softmax(1)
        valid = batch.targets != IGNORE
        picked = log_probs.gather(1, batch.targets.where(valid, 0).unsqueeze(1)).squeeze(1)
        loss = -picked[valid].mean() + config.kl_factor * divergence_by_hand(net).float() / counted
        optimizer.zero_grad()
        loss.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), config.clip)
        optimizer.step()
        project_by_hand(net, config.project)
        losses.append(loss.item())
    return losses


def compare(net, data, config, lr, steps=20, tolerance=1e-5):
    ours, theirs = copy.deepcopy(net), copy.deepcopy(net)
    trainer = trained(ours, data, config, lr, steps)
    losses = train_by_hand(theirs, data, config, lr, steps)
    assert difference(state(ours), state(theirs)) < tolerance
    assert difference(state(ours), state(net)) > 1e-2, "it has learned"
    return trainer, losses


@pytest.mark.parametrize(("norm", "scale"), MEMBERS)
def test_twenty_steps_are_those_of_the_obvious_loop(norm, scale):
    config = Config(batch=11, epochs=6, seed=3)
    trainer, losses = compare(network(norm, scale), made_up(augment=MOVES), config, 0.02)
    # 48 samples in batches of 11, 11, 11, 11, 4: steps 15 to 19 are the fourth epoch.
    assert trainer.step_count == 20
    weights = [11, 11, 11, 11, 4]
    expected = sum(w * loss for w, loss in zip(weights, losses[15:], strict=True)) / 48
    assert trainer.running_loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam"},
        {"project": False},
        {"clip": 0.05},
        {"kl_factor": 5.0, "momentum": 0.5},
        {"warmup_steps": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", ["batch", "analytic"])
def test_so_are_those_with(norm, options):
    trainer, _ = compare(network(norm, "bayes"), made_up(), Config(batch=12, epochs=4, **options), 0.02)
    assert trainer.step_count == 20


@pytest.mark.parametrize("norm", ["batch", "weight", "analytic"])
def test_so_are_those_of_a_segmentation_with_ignored_pixels(norm):
    config = Config(batch=3, epochs=4, kl_factor=0.1)
    trainer, _ = compare(network(norm, "bayes", pixels=True), made_up(16, pixels=True, augment=MOVES), config, 0.02)
    assert trainer.step_count == 20


def test_a_batch_in_which_no_pixel_counts_has_the_kl_alone():
    data = made_up(4, pixels=True)
    targets = data.train.targets.clone()
    targets[1] = IGNORE
    data = dataclasses.replace(data, train=Split(data.train.images, targets))
    trainer = trained(network("weight", "bayes", pixels=True), data, Config(batch=1), 0.01, 4)
    assert math.isfinite(trainer.running_loss)
    assert trainer.sums["nll"] > 0


def test_the_obvious_loop_would_notice():
    """A twin of the comparison: a KL that is ten percent off is seen."""
    net, data, config = network("weight", "bayes"), made_up(), Config(batch=12, epochs=4)
    other = copy.deepcopy(net)
    trained(net, data, Config(batch=12, epochs=4, kl_factor=1.1), 0.02, 20)
    train_by_hand(other, data, config, 0.02, 20)
    assert difference(state(net), state(other)) > 1e-4


def test_two_runs_are_bitwise_the_same():
    data = made_up(augment=MOVES)
    states = [state(trained(network("analytic", "bayes"), data, Config(batch=12), 0.02, 6).net) for _ in range(2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_kl_warms_up():
    data = made_up()
    trainer = Trainer(network("weight", "bayes"), data, Config(batch=12, kl_warmup=1.0), 1e-6, ALONE)
    seen = []
    for _ in range(3):
        before = dict(trainer.sums)
        trainer.step()
        loss, nll, kl = (trainer.sums[key] - before[key] for key in ("loss", "nll", "kl"))
        seen.append((loss - nll) * len(data.train) / kl)
    assert seen == pytest.approx([0.0, 0.25, 0.5], abs=1e-4)


# Statistics of batch norm over more samples than the batch.


def normalized_by_hand(net, images, detached):
    """The classifier with batch norm, its statistics taken over all images; ``detached``: of the others without a
    gradient, as a momentum of statistics would have them."""
    convolutions = [net[0], net[2]]
    x = images
    for layer, activation in zip(convolutions, (lambda v: F.leaky_relu(v, 0.01), F.relu), strict=True):
        length = layer.weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        z = F.conv2d(x, layer.weight / length, stride=layer.stride)
        used = torch.cat([z[:detached], z[detached:].detach()]) if detached else z
        mean = used.mean((0, 2, 3), keepdim=True)
        var = used.var((0, 2, 3), correction=0, keepdim=True)
        z = (z - mean) / (var + 1e-5).sqrt()
        x = activation(z * layer.scale.s.view(1, -1, 1, 1) + layer.scale.b.view(1, -1, 1, 1))
    pooled = x.mean((2, 3))
    weight = net[6].weight / net[6].weight.norm(dim=1, keepdim=True)
    z = pooled @ weight.T
    used = torch.cat([z[:detached], z[detached:].detach()]) if detached else z
    z = (z - used.mean(0)) / (used.var(0, correction=0) + 1e-5).sqrt()
    return z * net[6].scale.s + net[6].scale.b


def gradients(net, batch, detached=0):
    twin = copy.deepcopy(net)
    output = normalized_by_hand(twin, batch.images, detached)[: len(batch.targets)]
    F.cross_entropy(output, batch.targets).backward()
    return {name: p.grad for name, p in twin.named_parameters()}


@pytest.mark.parametrize("index", [0, 4], ids=["full", "last, short"])
def test_norm_batch_takes_statistics_and_gradients_over_the_others(index):
    data, net = made_up(), network("batch")
    config = Config(batch=11, norm_batch=40, project=False)
    trainer = Trainer(net, data, config, lr := 0.01, ALONE)
    trainer.batch = index
    batch = Batches(data, 11, 0, 40)(0, index)
    assert len(batch.images) == len(batch.targets) + 29
    before = copy.deepcopy(net)
    expected = gradients(before, batch)
    trainer.step()
    # The first step of Nesterov's momentum is (1 + momentum) times the gradient.
    found = {name: (p - net.get_parameter(name)) / (1.9 * lr) for name, p in before.named_parameters()}
    assert difference(found, expected) < 1e-3
    for alternative in (gradients(before, batch, detached=len(batch.targets)), gradients(before, _alone(batch))):
        assert difference(found, alternative) > 0.05
    response = F.conv2d(batch.images, before[0].weight / before[0].weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    torch.testing.assert_close(net[0].norm.running_mean, 0.1 * response.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)


def _alone(batch):
    return type(batch)(batch.images[: batch.whole], batch.targets, batch.whole, batch.samples[: batch.whole])


def test_the_loss_of_norm_batch_is_that_of_the_batch_alone():
    data = made_up()
    trainer = Trainer(network("batch"), data, Config(batch=11, norm_batch=40), 0.01, ALONE)
    batch = Batches(data, 11, 0, 40)(0, 0)
    output = normalized_by_hand(trainer.net, batch.images, 0)[:11]
    expected = F.cross_entropy(output, batch.targets).item()
    trainer.step()
    assert trainer.running_loss == pytest.approx(expected, rel=1e-5)


# Other ways to compute the same.

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")


@pytest.mark.parametrize(
    ("options", "norm", "tolerance"),
    [
        ({"precision": "bf16"}, "batch", 0.1),
        ({"precision": "bf16"}, "analytic", 0.1),
        ({"channels_last": True}, "batch", 1e-4),
        ({"channels_last": True}, "analytic", 1e-4),
        pytest.param({"compile": True}, "weight", 1e-4, marks=needs_compiler),
    ],
    ids=str,
)
def test_another_precision_layout_or_compiler_agrees(options, norm, tolerance):
    data = made_up(44)
    losses = []
    for more in ({}, options):
        trainer = Trainer(network(norm, "bayes"), data, Config(batch=22, epochs=4, **more), 0.02, ALONE)
        for _ in range(2):
            trainer.step()
        losses.append(trainer.running_loss)
        assert all(p.dtype == torch.float32 for p in trainer.net.parameters())
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    assert losses[1] != losses[0] or "precision" not in options


def test_channels_last_reaches_images_and_weights():
    seen = []
    net = network("weight", "bayes")
    net[2].register_forward_pre_hook(lambda module, args: seen.append(args[0].stride()))
    trained(net, made_up(), Config(batch=12, channels_last=True), 0.01, 1)
    assert net[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert seen[0][1] == 1, "channels are next to each other"


# Measurements.


@pytest.mark.parametrize(("norm", "scale"), [("batch", "point"), ("analytic", "bayes")])
def test_a_record_holds_what_was_measured(norm, scale):
    data = made_up(augment=MOVES, augment_val=False)
    trainer = trained(network(norm, scale), data, Config(batch=12, epochs=3, train_eval=9), 0.02, 4)
    record = trainer.measure()
    net = trainer.net.eval()
    with torch.no_grad():
        log_probs = net(data.standardized(data.val.images)).log_softmax(1)
        seen = next(images_of(data, "train", trainer.config.seed, 9))[0]
        first = net(seen).log_softmax(1)
    assert not torch.equal(seen, data.standardized(data.train.images[:9])), "as in training, augmented"
    assert record["val_nll"] == pytest.approx(float(F.nll_loss(log_probs, data.val.targets)), rel=1e-5)
    assert record["val_accuracy"] == pytest.approx(float((log_probs.argmax(1) == data.val.targets).float().mean()))
    assert record["train_eval_nll"] == pytest.approx(float(F.nll_loss(first, data.train.targets[:9])), rel=1e-5)
    assert (record["epoch"], record["step"]) == (1, 4)
    assert record["lr"] == pytest.approx(0.02)
    assert record["train_loss"] == pytest.approx(record["train_nll"] + record["kl"] / 48, rel=1e-5)
    assert (record["kl"] > 0) == (scale == "bayes")
    expected = {name: float((p.sigma / p.mean).mean()) for name, p in bayesnorm.posterior(net).items()}
    assert record["sigma_over_s"] == pytest.approx(expected)
    assert len(expected) == (3 if scale == "bayes" else 0)


def test_images_are_augmented_for_the_record_by_the_seed_of_the_run():
    data = made_up(augment=MOVES, augment_val=True)
    trainer = trained(network("weight"), data, Config(batch=12, seed=3, train_eval=48), 0.02, 4)
    record = trainer.measure()
    for part, name in (("train", "train_eval_nll"), ("val", "val_nll")):
        found = {seed: evaluate(trainer.net, data, part, seed=seed)["single"].measures.nll for seed in (0, 3)}
        assert record[name] == pytest.approx(found[3], rel=1e-5)
        assert record[name] != pytest.approx(found[0], rel=1e-3)


def test_measuring_changes_nothing():
    data = made_up()
    trainer = trained(network("batch", "bayes"), data, Config(batch=12), 0.02, 4)
    before = {name: value.clone() for name, value in trainer.tensors().items()}
    trainer.measure()
    assert all(torch.equal(before[name], value) for name, value in trainer.tensors().items())


def test_train_eval_0_leaves_it_out_and_none_takes_as_many_as_there_are_for_validation(monkeypatch):
    trainer = trained(network("batch"), made_up(), Config(batch=12, train_eval=0), 0.02, 4)
    assert trainer.measure()["train_eval_nll"] is None
    trainer = trained(network("batch"), made_up(), Config(batch=12), 0.02, 4)
    seen = []
    evaluate = trainer.evaluate
    monkeypatch.setattr(trainer, "evaluate", lambda *args: seen.append(args) or evaluate(*args))
    trainer.measure()
    assert seen == [("train", 20), ("val",)]


# State.


def test_a_trainer_goes_on_from_the_tensors_and_counters_of_another():
    data, config = made_up(augment=MOVES), Config(batch=12, epochs=3)
    first = trained(network("batch", "bayes"), data, config, 0.02, 6)
    second = Trainer(network("batch", "bayes", seed=5), data, config, 0.02, ALONE)
    for name, value in second.tensors().items():
        with torch.no_grad():
            value.copy_(first.tensors()[name])
    second.load_counters(copy.deepcopy(first.counters()))
    assert second.step_count == 6
    for trainer in (first, second):
        trainer.step()
        trainer.step()
    assert first.sums == second.sums
    assert all(torch.equal(value, second.tensors()[name]) for name, value in first.tensors().items())


def test_a_state_that_is_no_tensor_is_refused():
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    net = nn.Sequential(nn.Flatten(), Odd(64, 3))
    with pytest.raises(ValueError, match=r"_extra_state.*is no tensor"):
        Trainer(net, made_up(), Config(), 0.1, ALONE).tensors()


# What goes wrong.


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (nn.Linear(64, 4), r"\(12, 4\) for 3 classes"),
        (nn.Sequential(nn.Linear(64, 3), nn.Flatten(0)), r"\(36,\) for 3 classes"),
    ],
)
def test_a_wrong_output_is_refused(output, words):
    net = nn.Sequential(nn.Flatten(), output)
    with pytest.raises(ValueError, match=f"the network returned {words}.*classes on axis 1"):
        trained(net, made_up(), Config(batch=12), 0.1, 1)


def test_an_output_that_is_no_tensor_is_refused():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(ValueError, match="returned tuple"):
        trained(nn.Sequential(nn.Flatten(), Pair(64, 3)), made_up(), Config(batch=12), 0.1, 1)


def ruined(where):
    net = network("weight", "bayes")
    if where == "parameter":
        net[2].weight.data[0, 0, 0, 0] = math.nan
    elif where == "KL":
        net[2].scale.s.data[1] = 1e30
    elif where == "output":
        net[2].scale.b.data[1] = 3e38
        net[2].scale.s.data[1] = 1e3
    else:
        net[2].weight.register_hook(lambda gradient: gradient * math.inf)
    return net


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("parameter", "in the parameter 2.weight"),
        ("KL", "in the KL of layer 2"),
        ("output", "in the output of layer 2"),
        ("gradient", "in the gradient of 2.weight"),
    ],
)
def test_a_step_that_is_not_finite_is_not_taken(where, words):
    trainer = Trainer(ruined(where), made_up(), Config(batch=12, epochs=3), 0.05, ALONE)
    before = {name: value.clone() for name, value in trainer.tensors().items() if "noise_step" not in name}
    with pytest.raises(DivergedError) as caught:
        trainer.step()
    message = str(caught.value)
    assert "\n" not in message
    for word in (words, "step 0", "epoch 1", "learning rate 0.05", "--lr", "--clip 1"):
        assert word in message
    assert ("the gradient is not finite" in message) == (where == "gradient")
    for name, value in before.items():
        assert torch.equal(trainer.tensors()[name].nan_to_num(7), value.nan_to_num(7)), name
    assert trainer.step_count == 0


def test_a_learning_rate_that_is_far_too_large_ends_in_that_error():
    trainer = Trainer(network("weight", "bayes"), made_up(), Config(batch=12, project=False), 1e18, ALONE)
    trainer.step()
    with pytest.raises(DivergedError, match="diverged at step 1 "):
        trainer.step()


def test_a_loss_that_has_exploded_is_a_divergence_though_it_is_finite():
    net = network("weight")
    net[-1].scale.s.data.fill_(1e6)
    trainer = Trainer(net, made_up(), Config(batch=12), 1e-14, ALONE)
    with pytest.raises(DivergedError, match="diverged at step 0 "):
        trainer.step()


def test_layers_without_gradient_are_left_alone():
    net = network("weight", "bayes")
    net[0].requires_grad_(False)
    before = state(net)
    trained(net, made_up(), Config(batch=12, project=False), 0.05, 3)
    frozen = {name for name, _ in net[0].named_parameters(prefix="0")}
    for name, value in state(net).items():
        if not name.startswith(("noise", "input")) and "." in name:
            assert torch.equal(value, before[name]) == (name in frozen or name not in dict(net.named_parameters()))


def test_weights_stay_on_the_sphere():
    net = trained(network("analytic", "bayes"), made_up(), Config(batch=12), 0.05, 5).net
    for layer in norm_layers(net).values():
        torch.testing.assert_close(layer.weight.flatten(1).norm(dim=1), torch.ones(len(layer.weight)))
