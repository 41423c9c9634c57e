"""The kernels of the fused engine against the plain loop: interpreted on the CPU (TRITON_INTERPRET=1), or on CUDA.

TRITON_INTERPRET=1 pytest tests/kernels
"""

import dataclasses
import math

import pytest
import torch
from chains import SHORT, SUMS, TINY, WIDE, chain
from interpreted import DEVICE, INTERPRETED, MARKS

from bayesnorm.data import Augment, Split, make_data
from bayesnorm.data.base import Data
from bayesnorm.errors import DivergedError
from bayesnorm.models import all_cnn, resnet18
from bayesnorm.scales import Bayes
from bayesnorm.train import Config, fit
from bayesnorm.train.engine import make_trainer
from bayesnorm.train.fleet import Member, fit_fleet
from bayesnorm.train.fused import maps, tiles
from bayesnorm.train.fused.dock import Dock
from bayesnorm.train.fused.tiles import Tile, backward_parts
from bayesnorm.train.fused.trainer import FusedTrainer
from bayesnorm.train.numerics import numerics
from bayesnorm.train.trainer import Trainer
from bayesnorm.train.world import World

pytestmark = MARKS
ALONE = World(0, 1, DEVICE)
LR = 0.02
METHODS = [
    *[("analytic", "bayes"), ("analytic", "noise"), ("analytic", "point")],
    *[("weight", "bayes"), ("weight", "noise"), ("weight", "point"), (None, "point")],
    *[("batch", "bayes"), ("batch", "noise"), ("batch", "point")],
]


@pytest.fixture(autouse=True)
def exact():
    """The products of the plain loop in full precision, on CUDA too."""
    with numerics(Config(), DEVICE):
        yield


def data(side: int = 8, count: int = 6, **augment) -> Data:
    """Six images: the last batch of four is short, and takes its step with the momentum of the first."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    split = Split(x, torch.randint(0, 10, (count,), generator=generator))
    names = tuple(str(i) for i in range(10))
    return make_data("made up", split, split[:4], split[:4], names, Augment(**augment)).to(DEVICE)


def network(norm, scale, padding="same", seed: int = 0, layers=None, width: float = 1 / 24, **options):
    """Scales, shifts and variances away from where they start, all different; ``layers``: others than All-CNN has."""
    torch.manual_seed(seed)
    net = chain(layers, norm, scale) if layers else all_cnn(norm, scale, padding, width, **options)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith((".s", ".b", ".u", "bias")):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return net.to(DEVICE)


def epoch(trainer: Trainer) -> dict:
    while trainer.batch < len(trainer.batches):
        trainer.step()
    record = trainer.measure()
    trainer.next_epoch()
    return record


def alike(plain: Trainer, fused: Trainer, rel: float = 1e-5) -> None:
    """Parameters and momentum of both, each as a vector."""
    for (name, a), b in zip(plain.net.named_parameters(), fused.net.parameters(), strict=True):
        before, now = (t.optimizer.state[p]["momentum_buffer"] for t, p in ((plain, a), (fused, b)))
        for kind, x, y in (("value", a, b), ("momentum", before, now)):
            assert (x - y).norm() <= 10 * rel * x.norm() + 1e-7, f"{kind} of {name}"
    for (name, a), b in zip(plain.net.named_buffers(), fused.net.buffers(), strict=True):
        torch.testing.assert_close(b, a, msg=name)


def compare(make, images: Data) -> FusedTrainer:
    """An epoch of two steps, the last of them with one sample."""
    config = Config(epochs=1, batch=2, lr=LR, engine="fused")
    plain, fused = Trainer(make(), images, config, LR, ALONE), FusedTrainer(make(), images, config, LR, ALONE)
    before, now = epoch(plain), epoch(fused)
    assert now["train_nll"] == pytest.approx(before["train_nll"], rel=1e-5)
    alike(plain, fused, 1e-4)
    return fused


@pytest.mark.parametrize(("norm", "scale"), METHODS)
def test_it_computes_what_the_plain_loop_computes(norm, scale):
    """An epoch of two steps, the last of them short."""
    config = Config(epochs=1, batch=4, lr=LR, engine="fused")
    images = data(shift=1, hflip=True, vflip=True)
    plain = Trainer(network(norm, scale), images, config, LR, ALONE)
    fused = FusedTrainer(network(norm, scale), images, config, LR, ALONE)
    before, now = epoch(plain), epoch(fused)
    assert now["step"] == before["step"]
    for key in ("train_loss", "train_nll", "kl", "val_nll", "lr"):
        assert now[key] == pytest.approx(before[key], rel=1e-5, abs=1e-9), key
    alike(plain, fused)


@pytest.mark.parametrize("extra", [{"clip": 0.1}, {"warmup_steps": 5, "kl_warmup": 2.0, "kl_factor": 0.3}])
def test_clipping_and_schedules(extra):
    config = Config(epochs=1, batch=4, lr=LR, engine="fused", **extra)
    trainers = [kind(network("analytic", "bayes"), data(), config, LR, ALONE) for kind in (Trainer, FusedTrainer)]
    for trainer in trainers:
        epoch(trainer)
    alike(*trainers)
    assert trainers[0].net.features[0].scale.s.std() > 0


def test_the_norm_of_a_gradient_is_added_up_block_by_block(monkeypatch):
    """Of two numbers, with a rest of one; those that the kernel has are only several in a large network."""
    from bayesnorm.train.fused import _finish  # needs Triton

    class Blocks:
        def __getitem__(self, grid, kernel=_finish.judge_kernel):
            return lambda *args, **sizes: kernel[grid](*args, **{**sizes, "BLOCK": 2})

    monkeypatch.setattr(_finish, "judge_kernel", Blocks())
    config, images = Config(epochs=1, batch=4, lr=LR, engine="fused", clip=0.1), data(4)
    plain, fused = (
        kind(network("analytic", "bayes", layers=SHORT), images, config, LR, ALONE) for kind in (Trainer, FusedTrainer)
    )
    assert (fused.layout.pitch + fused.layout.table) % 2 == 1
    before, now = epoch(plain), epoch(fused)
    for key in ("train_loss", "train_nll", "kl"):
        assert now[key] == pytest.approx(before[key], rel=1e-5), key
    alike(plain, fused)


def test_maps_that_shrink():
    """Without padding; of the 24 columns of a map, a strided convolution leaves out the last."""
    fused = compare(lambda: network("weight", "bayes", "valid"), data(28, 3))
    assert [link.out_width for link in fused.layout.links] == [26, 24, 11, 9, 7, 3, 1, 1, 1]


@pytest.mark.parametrize("enough", [tiles.ENOUGH, 1])
def test_channels_that_are_no_power_of_two(enough, monkeypatch):
    """In tiles of 32 columns, and in those that a larger batch has: of 64, and of 64 and 32 for 96 channels."""
    monkeypatch.setattr(tiles, "ENOUGH", enough)
    fused = compare(lambda: network("analytic", "bayes", layers=WIDE), data(8, 3))
    links = fused.layout.links
    found = tiles.forward_tile(links[1], 2, 1), tiles.backward_tile(links[2], 2, 1), tiles.weight_tile(links[1], 2)
    assert [tile.more for tile in found] == [32 * (enough == 1)] * 3


@pytest.mark.parametrize("norm", ["analytic", "batch"])
def test_sums_over_pixels_do_not_depend_on_the_tile(norm, monkeypatch):
    """Of two blocks of rows; the strided convolution has a block of each class and sample, the next ones have none."""
    config, images = Config(epochs=1, batch=2, lr=LR, engine="fused"), data(16, 3)
    plain, fused, larger = (
        kind(network(norm, "point", layers=SUMS), images, config, LR, ALONE)
        for kind in (Trainer, FusedTrainer, FusedTrainer)
    )
    parts = [backward_parts(link) for link in fused.layout.links]
    assert parts[1:4] == [4, 4, 1]
    assert 0 in parts
    epoch(plain)
    epoch(fused)
    for way in ("forward_tile", "backward_tile"):
        monkeypatch.setattr(maps, way, lambda link, *others: Tile(128, 32, 16))
    epoch(larger)
    alike(plain, fused)
    alike(plain, larger)


@pytest.mark.parametrize("norm", ["weight", "batch"])
def test_padded_maps_stand_in_a_frame_that_stays_zero(norm):
    config = Config(batch=2, engine="fused")
    trainer = FusedTrainer(network(norm, "point", width=1 / 48), data(count=2), config, LR, ALONE)
    trainer.step()
    stack = trainer.bench.stack
    framed = 0
    for i, (outputs, link) in enumerate(zip(stack.outputs, stack.chain.links[1:], strict=True)):
        frame = stack.frame(i)
        images = outputs.view(2, link.height + 2 * frame, link.width + 2 * frame, link.inputs)
        inner = images[:, frame : frame + link.height, frame : frame + link.width]
        assert inner.count_nonzero() == images.count_nonzero() > 0
        framed += frame > 0
    assert framed == 6


@pytest.mark.skipif(INTERPRETED, reason="the interpreter multiplies no bf16")
def test_half_precision_is_near():
    """As near to the gradient in full precision as the plain loop in half precision, but for a factor of two."""

    def gradient(kind, precision):
        config = Config(epochs=1, batch=4, engine="fused", precision=precision, checkpoint_steps=1)
        trainer = kind(network("analytic", "bayes"), data(), config, 1e-6, ALONE)
        trainer.step()
        return torch.cat([trainer.optimizer.state[p]["momentum_buffer"].flatten() for p in trainer.net.parameters()])

    full, plain, fused = gradient(Trainer, "fp32"), gradient(Trainer, "bf16"), gradient(FusedTrainer, "bf16")
    assert 0 < (fused - full).norm() <= 2 * (plain - full).norm()


def test_members_of_a_fleet_are_what_they_are_alone(tmp_path):
    """Two seeds and rates in one stack; to the last bit."""
    images = data(shift=1)
    configs = [Config(epochs=1, batch=4, lr=1e-4 * (i + 1), engine="fused", seed=i) for i in range(2)]
    members = {
        str(i): Member(network("analytic", "bayes", seed=i, layers=SHORT), images, config, tmp_path / str(i))
        for i, config in enumerate(configs)
    }
    together = fit_fleet(members)
    for i, config in enumerate(configs):
        alone = fit(network("analytic", "bayes", seed=i, layers=SHORT), images, config)
        assert alone.result["digest"] == together[str(i)].result["digest"]
        assert alone.history == together[str(i)].history


def test_trainers_at_one_dock_share_a_stack_unless_only_some_of_them_normalize_by_the_batch():
    images, dock = data(4, 2), Dock()
    config = Config(epochs=1, batch=2, lr=LR, engine="fused")
    kinds = [("analytic", "bayes"), ("weight", "point"), ("batch", "point"), ("analytic", "bayes")]
    trainers = [make_trainer(network(*kind, layers=SHORT), images, config, LR, ALONE, dock) for kind in kinds]
    for trainer in trainers:
        trainer.begin()
    for trainer in trainers:
        trainer.step()
    assert trainers[0].bench is trainers[1].bench is trainers[3].bench
    assert trainers[0].bench is not trainers[2].bench
    # Those of a kind are neighbours.
    assert [trainer.number for trainer in trainers] == [0, 2, 0, 1]
    assert [(kind.first, kind.models) for kind in trainers[0].bench.stack.kinds] == [(0, 2), (2, 1)]


def test_one_that_diverges_stops_alone_and_its_step_is_not_taken(tmp_path):
    """In the second step of two; the good one takes a third, alone."""
    images = data(4, 5)
    good = Config(epochs=1, batch=2, lr=LR, engine="fused")
    bad = dataclasses.replace(good, lr=1e30)
    kept, other, again = (network("weight", "point", layers=SHORT) for _ in range(3))
    members = {
        "good": Member(other, images, good, tmp_path / "good"),
        "bad": Member(kept, images, bad, tmp_path / "bad"),
    }
    found = fit_fleet(members)
    assert isinstance(found["bad"], DivergedError)
    assert "diverged at step 1 " in str(found["bad"])
    assert found["good"].result["digest"] == fit(again, images, good).result["digest"]
    assert all(parameter.isfinite().all() for parameter in kept.parameters())


def test_an_interrupted_run_goes_on_bitwise(tmp_path):
    config, images = Config(epochs=1, batch=2, lr=LR, engine="fused", checkpoint_steps=1), data(4, 5)
    whole = fit(network("analytic", "bayes", layers=SHORT), images, config)

    class InterruptError(Exception):
        pass

    def interrupt(event):
        if type(event).__name__ == "Saved" and event.step == 2:
            raise InterruptError

    with pytest.raises(InterruptError):
        fit(network("analytic", "bayes", layers=SHORT), images, config, out=tmp_path / "run", callbacks=[interrupt])
    again = fit(network("analytic", "bayes", seed=5, layers=SHORT), images, config, out=tmp_path / "run", resume=True)
    assert again.result["digest"] == whole.result["digest"]


def test_afterwards_the_network_is_its_own_again():
    net = network("analytic", "bayes", layers=SHORT)
    parameters = dict(net.named_parameters())
    strides = {name: parameter.stride() for name, parameter in parameters.items()}
    trainer = FusedTrainer(net, data(4, 3), Config(epochs=1, batch=2, lr=LR, engine="fused"), LR, ALONE)
    epoch(trainer)
    stack = trainer.bench.stack
    trainer.release()
    assert {name: parameter.stride() for name, parameter in net.named_parameters()} == strides
    for name, parameter in net.named_parameters():
        assert parameter is parameters[name]
        assert parameter.untyped_storage().data_ptr() != stack.values.untyped_storage().data_ptr()
    step = next(buffer for name, buffer in net.named_buffers() if name.endswith("noise_step"))
    assert step.untyped_storage().data_ptr() != stack.noise_step.untyped_storage().data_ptr()
    assert step == 2


def with_offset(net):
    """As a converted network has it where its scale vanished."""
    net.features[2].scale.offset[1] = 0.5
    return net


def test_a_checkpoint_may_not_bring_what_it_cannot_do():
    net = network("weight", "bayes")
    trainer = FusedTrainer(net, data(), Config(batch=4, lr=LR, engine="fused"), LR, ALONE)
    with_offset(net)
    with pytest.raises(ValueError, match="a constant outside its scale: train it with --engine captured"):
        trainer.step()


@pytest.mark.parametrize(
    ("net", "options", "why"),
    [
        (lambda: resnet18("weight", "point", width=1 / 16), {}, "ResNet18 is not known"),
        (lambda: network("weight", "point", dropout=0.5), {}, "Dropout stands where"),
        (lambda: network("weight", Bayes(prior="log-uniform")), {}, "posterior is not the plain one"),
        (lambda: with_offset(network("weight", "bayes")), {}, "a constant outside its scale"),
        (lambda: network("weight", "point"), {"optimizer": "adam"}, "--optimizer adam"),
        (lambda: network("batch", "point", layers=TINY), {"batch": 5}, "one sample for maps of one pixel"),
    ],
)
def test_what_it_cannot_do_it_refuses(net, options, why):
    config = Config(**{"batch": 4, "lr": LR, "engine": "fused", **options})
    with pytest.raises(ValueError, match=rf"--engine fused: .*{why}.*--engine auto"):
        make_trainer(net().to(DEVICE), data(), config, LR, ALONE)


def test_maps_of_one_pixel_are_normalized_where_every_batch_has_several_samples():
    """Six images in batches of four."""
    config = Config(epochs=1, batch=4, lr=LR, engine="fused")
    images = data()
    plain, fused = (
        kind(network("batch", "point", layers=TINY), images, config, LR, ALONE) for kind in (Trainer, FusedTrainer)
    )
    assert epoch(fused)["train_nll"] == pytest.approx(epoch(plain)["train_nll"], rel=1e-5)
    alike(plain, fused)


def test_the_loss_of_a_diverged_step_is_told():
    config = Config(epochs=1, batch=1, lr=LR, engine="fused")
    net = network("weight", "point", layers=SHORT)
    with torch.no_grad():
        net.features[0].weight[0, 0, 0, 0] = math.nan
    with pytest.raises(DivergedError, match=r"diverged at step 0 \(epoch 1, learning rate 0\.02\)"):
        FusedTrainer(net, data(4, 1), config, LR, ALONE).step()
