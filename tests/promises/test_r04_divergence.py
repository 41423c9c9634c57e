"""R4: a loss or gradient that is not finite stops before the step, and is explained."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from promises.runs import TRAIN, Commands, checkpoints, tree, words
from torch import Tensor, nn

import bayesnorm
from bayesnorm.data.base import Data, Split, make_data
from bayesnorm.errors import DivergedError
from bayesnorm.train import Config, fit
from bayesnorm.train.events import Event, Stepped

FIRST = 3
"""Steps before it happens."""


class Faulty(nn.Module):
    """Hands its input on, from the fourth call in training mode on with a value that is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0.0
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return x * self.value if self.value and self.calls > FIRST else x


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), Faulty(), nn.Conv2d(4, 3, 2), nn.Flatten())
    return bayesnorm.convert(plain, norm="weight", scale="bayes")


def _data() -> Data:
    generator = torch.Generator().manual_seed(0)
    images, targets = torch.rand(40, 1, 4, 4, generator=generator), torch.arange(40) % 3
    parts = [Split(images[a:b], targets[a:b]) for a, b in ((0, 24), (24, 32), (32, 40))]
    return make_data("made up", *parts, classes=("a", "b", "c"))


def _bad_output(net: nn.Sequential, value: float) -> None:
    net[2].value = value


def _bad_gradient(net: nn.Sequential, value: float) -> None:
    seen = []

    def hook(gradient: Tensor) -> Tensor:
        seen.append(1)
        return gradient * value if len(seen) > FIRST else gradient

    net[3].weight.register_hook(hook)


def _caught(
    net: nn.Sequential, data: Data, out: Path | None, after: Callable[[], None] = lambda: None
) -> tuple[str, list[Tensor]]:
    """The message, and the parameters as they were after the last good step."""
    kept: list[list[Tensor]] = [[p.detach().clone() for p in net.parameters()]]

    def look(event: Event) -> None:
        if isinstance(event, Stepped):
            if event.step == FIRST:
                after()
            kept.append([p.detach().clone() for p in net.parameters()])

    config = Config(epochs=2, batch=4, lr=0.0123, decay_epochs=1e9, checkpoint_steps=2)
    with pytest.raises(DivergedError) as caught:
        fit(net, data, config, out=out, callbacks=[look])
    return str(caught.value), kept[-1]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("spoil", "where"),
    [(_bad_output, "in the output of layer 2"), (_bad_gradient, "in the gradient of 3.weight")],
)
def test_stops_before_the_step_and_says_where(
    tmp_path: Path, value: float, spoil: Callable[[nn.Sequential, float], None], where: str
) -> None:
    net = _network()
    spoil(net, value)
    message, before = _caught(net, _data(), tmp_path / "run")
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    last = checkpoints(tmp_path / "run")[-1].with_suffix(".safetensors")
    for part in (f"at step {FIRST} ", "learning rate 0.0123", where, f"last good checkpoint: {last}", "--clip"):
        assert part in message
    assert "\n" not in message


def test_a_divergence_from_the_prior_that_is_infinite(tmp_path: Path) -> None:
    """The parameters are finite; the square of the posterior's sigma is not."""
    net = _network()

    @torch.no_grad()
    def widen() -> None:
        net[3].scale.u.fill_(1e30)

    message, before = _caught(net, _data(), tmp_path / "run", widen)
    assert "in the KL of layer 3" in message
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_parameter_that_is_not_finite(value: float) -> None:
    net = _network()

    @torch.no_grad()
    def spoil() -> None:
        net[3].scale.u[0] = value

    message, _ = _caught(net, _data(), None, spoil)
    assert "in the parameter 3.scale.u" in message


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_image_that_is_not_finite(value: float) -> None:
    """``make_data`` refuses it; here it comes later."""
    data = _data()
    images = data.train.images.clone()
    images[:, 0, 0, 0] = value
    net = _network()
    spoiled = dataclasses.replace(data, train=Split(images, data.train.targets))
    message, before = _caught(net, spoiled, None)
    assert "at step 0 " in message
    assert "in the images of the batch" in message
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("norm", ["none", "weight"])
def test_the_command_has_its_own_exit_code(command: Commands, tmp_path: Path, norm: str) -> None:
    folder = tmp_path / "run"
    diverging = [*TRAIN, "--norm", norm, "--scale", "point", "--lr", "1e6", "--checkpoint-steps", "1", "--out", folder]
    done = command(*diverging)
    assert (done.status, done.warnings) == (3, [])
    last = checkpoints(folder)[-1].with_suffix(".safetensors")
    for part in ("diverged at step 1 ", "learning rate 1e+06", "layer features.", f"last good checkpoint: {last}"):
        assert part in done.error
    listed = command("runs", folder)
    assert "diverged" in listed.out
    before = {name: digest for name, digest in tree(folder).items() if name != "events.jsonl"}
    again = command(*diverging, "--resume")
    assert (again.status, "diverged at step 1" in again.error) == (3, True)
    assert {name: digest for name, digest in tree(folder).items() if name != "events.jsonl"} == before
    evaluated = command("eval", folder, "--samples", "0")
    assert (evaluated.status, " predictions are NaN" in evaluated.error) == (1, True), "no number stands for that"
    assert {name: digest for name, digest in tree(folder).items() if name != "events.jsonl"} == before


@pytest.mark.parametrize(("norm", "lr"), [("none", "3"), ("weight", "30")])
def test_the_last_good_checkpoint_can_still_be_used(command: Commands, tmp_path: Path, norm: str, lr: str) -> None:
    """Learning rates at which the gradient overflows while the loss is still a number."""
    folder = tmp_path / "run"
    more = ["--norm", norm, "--scale", "point", "--lr", lr, "--checkpoint-steps", "2", "--out", folder]
    assert command(*TRAIN, *more).status == 3
    done = command("eval", folder, "--samples", "0")
    assert (done.status, done.err) == (0, "")
    assert f"step {_step_of(folder)}:" in done.out
    found = json.loads((folder / "evaluation-test.json").read_text())["metrics"]["single"]
    assert found["nll"] > 2, "a number, of a network that has learned nothing"


def _step_of(folder: Path) -> int:
    return int(json.loads(checkpoints(folder)[-1].read_text())["step"])


def test_a_search_in_which_everything_diverges(command: Commands, tmp_path: Path) -> None:
    options = words("--norm none --scale point --lr auto --lr-trials 2 --lr-epochs 1 --lr-low 1e5 --lr-high 1e6")
    done = command(*TRAIN, *options, "--out", tmp_path / "run")
    assert (done.status, "--lr-low" in done.error) == (3, True)
