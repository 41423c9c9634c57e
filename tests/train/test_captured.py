"""The captured engine against the plain loop, on the CPU as it is written, on CUDA as a graph."""

import copy
import math

import pytest
import torch
from small_data import ALONE, made_up, network, state
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bayesnorm import init_from_data_
from bayesnorm.data.augment import Augment
from bayesnorm.data.base import Data
from bayesnorm.errors import DivergedError
from bayesnorm.models import all_cnn, cell_net
from bayesnorm.train import Config, fit
from bayesnorm.train.captured import CHUNK, CapturedTrainer
from bayesnorm.train.engine import make_trainer
from bayesnorm.train.fused import large
from bayesnorm.train.fused.convolution import convolution
from bayesnorm.train.lockstep import Turn
from bayesnorm.train.numerics import numerics
from bayesnorm.train.trainer import Trainer
from bayesnorm.train.world import World

METHODS = [(None, "point"), ("batch", "point"), ("weight", "bayes"), ("analytic", "bayes"), ("analytic", "noise")]
KINDS = (Trainer, CapturedTrainer)
LR = 0.02
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def data() -> Data:
    """Fifty samples: the last batch of an epoch is short."""
    return made_up(train=50, augment=Augment(shift=1, hflip=True))


def epochs(trainer: Trainer, count: int) -> list[dict]:
    records = []
    for _ in range(count):
        while trainer.batch < len(trainer.batches):
            trainer.step()
        records.append(trainer.measure())
        trainer.next_epoch()
    return records


def agree(plain: list[dict], captured: list[dict], rel: float) -> None:
    for before, now in zip(plain, captured, strict=True):
        assert {key: now[key] for key in ("epoch", "step")} == {key: before[key] for key in ("epoch", "step")}
        for key in ("train_loss", "train_nll", "kl", "val_nll", "lr"):
            assert now[key] == pytest.approx(before[key], rel=rel, abs=1e-12), key


@pytest.mark.parametrize("extra", [{}, {"clip": 0.5, "warmup_steps": 7, "kl_warmup": 2.0}, {"channels_last": True}])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("norm", "scale"), METHODS)
def test_it_computes_what_the_plain_loop_computes(norm, scale, optimizer, extra):
    """Three epochs, 21 steps; Adam divides by small numbers and is held to less."""
    config = Config(epochs=3, batch=8, lr=LR, optimizer=optimizer, **extra)
    plain, captured = (kind(network(norm, scale), data(), config, LR, ALONE) for kind in KINDS)
    agree(epochs(plain, 3), epochs(captured, 3), rel=1e-4 if optimizer == "adam" else 1e-5)
    for (name, a), b in zip(plain.net.state_dict().items(), captured.net.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=2e-5, msg=name)


def test_pixels_and_targets_that_do_not_count():
    segments = made_up(pixels=True)
    config = Config(epochs=2, batch=7, lr=LR)
    plain, captured = (kind(network("weight", "bayes", pixels=True), segments, config, LR, ALONE) for kind in KINDS)
    before, now = epochs(plain, 2), epochs(captured, 2)
    agree(before, now, rel=1e-5)
    assert now[-1]["train_nll"] < now[0]["train_nll"]


def deformed() -> Data:
    """Pixels with everything that can be done to them; the last batch of an epoch is short."""
    return made_up(train=15, size=(1, 16, 16), pixels=True, augment=Augment(1, True, True, deform=1.5, spacing=8))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("norm", "scale"), [("weight", "bayes"), ("analytic", "bayes"), ("batch", "point")])
def test_deformed_pixels(norm, scale, batch):
    config = Config(epochs=2, batch=batch, lr=0.005, optimizer="adam", kl_factor=0.1)
    plain, captured = (kind(network(norm, scale, pixels=True), deformed(), config, 0.005, ALONE) for kind in KINDS)
    first, second = plain.batches(0, 0), captured.batches(0, 0)
    assert torch.equal(first.images, second.images)
    captured._upload()
    images, targets = captured._inputs(captured.numbers)
    assert torch.equal(images, first.images)
    assert torch.equal(targets, first.targets)
    agree(epochs(plain, 2), epochs(captured, 2), rel=1e-4)


def test_kernels_of_their_own_do_not_deform():
    config = Config(batch=2, lr=LR, engine="fused")
    with pytest.raises(ValueError, match=r"--engine fused: it does not deform images; choose --engine auto"):
        make_trainer(network("weight"), made_up(augment=Augment(deform=1.0)), config, LR, ALONE)


WIDE = {"norm_batch": 30}
"""Twenty-two samples that only normalize, beside eight of the batch, or two at the end of an epoch."""


@pytest.mark.parametrize("extra", [{}, {"optimizer": "adam"}, {"clip": 0.5, "channels_last": False}])
@pytest.mark.parametrize("scale", ["point", "bayes"])
def test_larger_normalization_batches(scale, extra):
    config = Config(epochs=3, batch=8, lr=LR, **WIDE, **extra)
    plain, captured = (kind(network("batch", scale), data(), config, LR, ALONE) for kind in KINDS)
    records = epochs(plain, 3)
    agree(records, epochs(captured, 3), rel=1e-4 if "optimizer" in extra else 1e-5)
    for (name, a), b in zip(plain.net.state_dict().items(), captured.net.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=2e-5, msg=name)
    alone = CapturedTrainer(network("batch", scale), data(), Config(epochs=3, batch=8, lr=LR, **extra), LR, ALONE)
    assert epochs(alone, 1)[0]["train_nll"] != pytest.approx(records[0]["train_nll"], rel=1e-3), "they do normalize"


@pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])
def test_the_samples_that_only_normalize_are_those_of_the_plain_loop(pixels):
    config = Config(batch=4, lr=LR, norm_batch=9) if pixels else Config(batch=8, lr=LR, **WIDE)
    trainer = CapturedTrainer(network("batch", pixels=pixels), deformed() if pixels else data(), config, LR, ALONE)
    for epoch, first in ((0, 0), (1, 0), (2, 2)):
        trainer.load_counters({"epoch": epoch, "batch": first, "sums": trainer.sums})
        trainer._upload()
        for index in range(first, len(trainer.batches)):
            expected = trainer.batches(epoch, index)
            images, targets = trainer._inputs(trainer.numbers[: len(expected.images)])
            assert torch.equal(images, expected.images)
            assert torch.equal(targets, expected.targets)
            trainer.place += 1
            trainer.count += 1
    assert len(expected.targets) < config.batch, "the last is short"


def test_kernels_of_their_own_have_no_larger_normalization_batch():
    config = Config(batch=8, lr=LR, engine="fused", **WIDE)
    with pytest.raises(ValueError, match=r"--engine fused: .*only normalize \(--norm-batch\); choose --engine auto"):
        make_trainer(network("batch"), data(), config, LR, ALONE)


class FromTheHost(TorchDispatchMode):
    """Notes what a CUDA graph cannot hold: values from the host or for it, and shapes that hang on values."""

    FORBIDDEN = ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "unique", "item")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.partition(".")[0]
        if name.removeprefix("aten::") in self.FORBIDDEN:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("norm", "extra"), [("weight", {}), ("batch", {"norm_batch": 9})])
def test_nothing_of_a_deformed_batch_comes_from_the_host(norm, extra):
    trainer = CapturedTrainer(network(norm, pixels=True), deformed(), Config(batch=2, lr=LR, **extra), LR, ALONE)
    trainer._upload()
    with FromTheHost() as watch:
        trainer._inputs(trainer.numbers)
    assert watch.found == []
    with FromTheHost() as watch:
        torch.tensor([1.0, 2.0]).nonzero()
    assert watch.found == ["lift_fresh", "nonzero"], "it sees what it looks for"


@cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_deforms_as_the_plain_loop_does(precision):
    device = torch.device("cuda")
    config, world = Config(epochs=2, batch=2, lr=0.005, optimizer="adam", precision=precision), World(0, 1, device)
    net = [network("analytic", "bayes", pixels=True).to(device) for _ in KINDS]
    plain, captured = (kind(n, deformed().to(device), config, 0.005, world) for kind, n in zip(KINDS, net, strict=True))
    with numerics(config, device):
        before, now = epochs(plain, 2), epochs(captured, 2)
    agree(before, now, rel=1e-3 if precision == "fp32" else 2e-2)
    assert set(captured.graphs) == {2, 1}  # whole batches, and the short one


def test_parameters_keep_their_identity_and_order_in_memory():
    net = network("analytic", "bayes").to(memory_format=torch.channels_last)
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in net.named_parameters()}
    trainer = CapturedTrainer(net, data(), Config(batch=8, lr=LR), LR, ALONE)
    assert sum(parameter.numel() for parameter, _ in before.values()) == trainer.flat.values.numel()
    for name, parameter in net.named_parameters():
        old, value = before[name]
        assert parameter is old
        assert torch.equal(parameter, value)
        if parameter.dim() == 4:
            last = torch.channels_last
            assert parameter.is_contiguous(memory_format=last) == value.is_contiguous(memory_format=last)
        assert parameter.untyped_storage().data_ptr() == trainer.flat.values.untyped_storage().data_ptr()


def test_a_look_comes_at_checkpoints_and_at_least_every_so_many_steps():
    config = Config(epochs=1, batch=8, lr=LR, checkpoint_steps=4)
    trainer = CapturedTrainer(network("weight"), data(), config, LR, ALONE)
    places = []
    while trainer.batch < len(trainer.batches):
        trainer.step()
        places.append(trainer.batch)
    assert places == [4, 6, 7]  # a checkpoint, the last whole batch, the short one
    assert CHUNK >= 100


def test_looks_are_at_the_same_steps_wherever_a_run_was_resumed(monkeypatch):
    """So that members of a fleet that were stopped at different steps are together again at the next look."""
    monkeypatch.setattr(CapturedTrainer, "chunk", 3)
    places = {}
    for start in (0, 1, 2):
        trainer = CapturedTrainer(network("weight"), data(), Config(epochs=1, batch=8, lr=LR), LR, ALONE)
        trainer.load_counters({**trainer.counters(), "batch": start})
        places[start] = []
        while trainer.batch < len(trainer.batches):
            trainer.step()
            places[start].append(trainer.batch)
    assert places == {start: [3, 6, 7] for start in (0, 1, 2)}


def test_a_step_that_would_diverge_is_not_taken_nor_any_after_it():
    config = Config(epochs=1, batch=8, lr=LR)
    poisoned = data()
    trainer = CapturedTrainer(network("weight", "bayes"), poisoned, config, LR, ALONE)
    third = trainer.batches(0, 2)
    reference = Trainer(network("weight", "bayes"), poisoned, config, LR, ALONE)
    reference.step()
    reference.step()
    order = trainer.batches.permutation(0)
    poisoned.train.images[order[16]] = math.nan
    assert third.whole == 8
    with pytest.raises(DivergedError, match=r"diverged at step 2 \(epoch 1, learning rate 0\.02\)"):
        trainer.step()
    for (name, a), b in zip(reference.net.named_parameters(), trainer.net.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6, msg=name)


def test_which_engine_is_chosen():
    net = network("weight")
    assert type(make_trainer(net, data(), Config(batch=8, lr=LR), LR, ALONE)) is Trainer  # there is no CUDA here
    assert type(make_trainer(net, data(), Config(batch=8, lr=LR, engine="captured"), LR, ALONE)) is CapturedTrainer
    assert type(make_trainer(net, data(), Config(batch=8, lr=LR, engine="plain"), LR, ALONE)) is Trainer
    wide = Config(batch=8, lr=LR, engine="captured", **WIDE)
    assert type(make_trainer(network("batch"), data(), wide, LR, ALONE)) is CapturedTrainer


def mixed() -> nn.Module:
    net = network("weight")
    net.register_parameter("wide", nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    return net


@pytest.mark.parametrize(
    ("net", "where", "config", "world", "why"),
    [
        (network("weight"), data(), {}, World(0, 2, torch.device("cpu")), "several processes"),
        (mixed(), data(), {}, ALONE, "several types"),
    ],
)
def test_what_cannot_be_captured_is_refused_or_left_to_the_plain_loop(net, where, config, world, why):
    asked = Config(batch=8, lr=LR, engine="captured", **config)
    with pytest.raises(ValueError, match=rf"--engine captured: .*{why}.*--engine plain"):
        make_trainer(net, where, asked, LR, world)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("stop", [1, 4, 6, 9])
@pytest.mark.parametrize(("norm", "extra"), [("analytic", {}), ("batch", WIDE)])
def test_a_run_that_was_interrupted_goes_on_bitwise(norm, extra, optimizer, stop, tmp_path):
    config = Config(epochs=2, batch=8, lr=LR, engine="captured", optimizer=optimizer, checkpoint_steps=1, **extra)
    whole = fit(network(norm, "bayes"), data(), config)

    class InterruptError(Exception):
        pass

    def interrupt(event):
        if type(event).__name__ == "Saved" and event.step == stop:
            raise InterruptError

    with pytest.raises(InterruptError):
        fit(network(norm, "bayes"), data(), config, out=tmp_path, callbacks=[interrupt])
    resumed = fit(network(norm, "bayes"), data(), config, out=tmp_path, resume=True)
    assert resumed.result["digest"] == whole.result["digest"]
    assert resumed.history == whole.history


@cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("norm", "scale", "extra"), [*((*each, {}) for each in METHODS), ("batch", "bayes", WIDE)])
def test_the_graph_computes_what_the_plain_loop_computes(norm, scale, extra, precision):
    device = torch.device("cuda")
    config = Config(epochs=2, batch=8, lr=0.005, precision=precision, **extra)
    world = World(0, 1, device)
    plain, captured = (kind(network(norm, scale).to(device), data().to(device), config, 0.005, world) for kind in KINDS)
    with numerics(config, device):
        before, now = epochs(plain, 2), epochs(captured, 2)
    agree(before, now, rel=1e-4 if precision == "fp32" else 2e-2)
    assert set(captured.graphs) == {8, 2}  # whole batches, and the short one


@cuda
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("norm", "scale"), METHODS)
def test_a_gpu_computes_what_a_cpu_computes(norm, scale, optimizer):
    """The cell network on deformed images, plain loop: what both share, torch's gradients, is not taken for granted."""
    torch.manual_seed(0)
    stats, classes = ([0.0], [1.0]), len(deformed().classes)
    net = cell_net(norm, scale, "softplus", width=0.25, num_classes=classes, input_stats=stats)
    config = Config(epochs=1, batch=2, lr=1e-4, optimizer=optimizer)
    found, nets = [], [copy.deepcopy(net) for _ in range(2)]
    for there, device in zip(nets, (torch.device("cpu"), torch.device("cuda")), strict=True):
        trainer = Trainer(there.to(device), deformed().to(device), config, 1e-4, World(0, 1, device))
        with numerics(config, device):
            found.append(epochs(trainer, 1))
    agree(*found, rel=1e-3)
    start, (cpu, gpu) = state(net), (state(each.cpu()) for each in nets)
    moved = torch.cat([(cpu[name] - value).flatten() for name, value in start.items() if value.is_floating_point()])
    apart = torch.cat([(cpu[name] - gpu[name]).flatten() for name, value in start.items() if value.is_floating_point()])
    assert moved.norm() > 0
    assert apart.norm() < 0.05 * moved.norm()  # Adam takes the sign of what is almost zero


@cuda
@pytest.mark.parametrize(("norm", "scale"), METHODS)
def test_one_step_with_large_filters_is_that_of_torch(norm, scale, monkeypatch):
    """The cell network, whose convolutions the captured step takes from kernels of its own: gradients of one step."""
    device = torch.device("cuda")
    segments, calls = deformed().to(device), []
    monkeypatch.setattr(large, "convolution", lambda *args: calls.append(args) or convolution(*args))
    config = Config(batch=2, precision="bf16", channels_last=True, project=False)
    moved = []
    for smallest in (large.SMALLEST, 1000):
        monkeypatch.setattr(large, "SMALLEST", smallest)
        torch.manual_seed(0)
        stats, classes = ([0.0], [1.0]), len(segments.classes)
        net = cell_net(norm, scale, "softplus", width=0.25, num_classes=classes, input_stats=stats).to(device)
        init_from_data_(net, segments.standardized(segments.train.images[:4]))
        trainer = CapturedTrainer(net, segments, config, 1e-3, World(0, 1, device))
        before = trainer.flat.values.clone()
        with numerics(config, device):
            trainer._upload()
            trainer._one_step(2)
        moved.append(trainer.flat.values - before)
    assert sum(len(args) == 3 for args in calls) == 10  # those that try whether the kernels are right have no bias
    ours, theirs = moved
    assert ((ours - theirs).norm() / theirs.norm()).item() < 0.1  # of two roundings to eight bits in each of 11 layers


@cuda
def test_warming_up_and_capturing_leave_no_trace():
    device = torch.device("cuda")
    trainer = CapturedTrainer(
        network("batch", "bayes").to(device), data().to(device), Config(batch=8), LR, World(0, 1, device)
    )
    trainer._upload()
    before, generator = state(trainer.net), torch.cuda.get_rng_state()
    trainer._captured(8)
    torch.cuda.synchronize()
    assert all(torch.equal(value, before[name]) for name, value in trainer.net.state_dict().items())
    assert torch.equal(torch.cuda.get_rng_state(), generator)


@cuda
@pytest.mark.parametrize(("norm", "scale"), METHODS)
def test_graphs_that_run_at_the_same_time_do_not_disturb_each_other(norm, scale):
    """Four at once, each on a stream of its own, and each again alone; large enough for products with a workspace."""
    device = torch.device("cuda")
    images, world = made_up(train=800).to(device), World(0, 1, device)

    def trainers() -> list[CapturedTrainer]:
        made = []
        for seed in range(4):
            torch.manual_seed(seed)
            net = all_cnn(norm, scale, "same", in_channels=1, num_classes=len(images.classes)).to(device)
            made.append(CapturedTrainer(net, images, Config(batch=8, lr=1e-3, seed=seed), 1e-3, world))
        return made

    together, alone = trainers(), trainers()
    turns = [Turn(device) for _ in together]
    with numerics(together[0].config, device):
        for trainer, turn in zip(together, turns, strict=True):
            with turn:
                trainer.begin()
        for trainer, turn in zip(together, turns, strict=True):
            with turn:
                trainer.step()
        for other in alone:
            other.step()
    for one, other in zip(together, alone, strict=True):
        assert one.batch == other.batch == 100
        assert torch.equal(one.flat.values, other.flat.values)
