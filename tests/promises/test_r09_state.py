"""R9: all that matters is in the state; saved, and loaded in a new process, five steps are equal."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from promises.runs import Commands, checkpoints
from promises.steps_run import KINDS, METHODS
from torch import Tensor, nn

from bayesnorm.data import digits
from bayesnorm.train import Config, Recipe
from bayesnorm.train.trainer import Trainer
from bayesnorm.train.world import World


@pytest.fixture(scope="module")
def runs(command: Commands) -> Path:
    """``whole``: six steps of everything; ``first``: one step; ``parts``: one step, and five in a new process."""
    folder, script = command.folder / "steps", Path(__file__).with_name("steps_run.py")
    for name, step in (("whole", 0), ("parts", 1)):
        done = command(script, folder / name, str(step))
        assert done.status == 0, done.err
    shutil.copytree(folder / "parts", folder / "first")
    done = command(script, folder / "parts", "0")
    assert done.status == 0, done.err
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_five_steps_in_a_new_process(runs: Path, kind: str) -> None:
    found = {name: _tensors(runs / name / kind) for name in ("whole", "first", "parts")}
    whole = found["whole"]
    assert whole.keys() == found["first"].keys() == found["parts"].keys()
    assert [name for name in whole if not torch.equal(whole[name], found["parts"][name])] == []
    changed = [name for name in whole if not torch.equal(whole[name], found["first"][name])]
    assert len(changed) > len(whole) / 4, "five steps change a lot"
    assert ("generator.cpu" in changed) == kind.startswith("dropout")
    assert [len(checkpoints(runs / name / kind)) for name in found] == [2, 1, 2]


def _tensors(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(checkpoints(folder)[-1].with_suffix(".safetensors"))


def _trainer(norm: str, scale: str, optimizer: str, seed: int = 0) -> Trainer:
    data = digits()
    recipe = Recipe(norm=norm, scale=scale, width=0.0625, padding="same", stochastic_bias=scale == "bayes")
    config = Config(batch=64, lr=0.01, optimizer=optimizer, seed=seed)
    return Trainer(recipe.build(data, seed), data, config, 0.01, World(0, 1, torch.device("cpu")))


@pytest.mark.parametrize(("norm", "scale", "optimizer"), [*((*m, "adam") for m in METHODS), ("batch", "bayes", "sgd")])
def test_every_tensor_is_saved(norm: str, scale: str, optimizer: str) -> None:
    """By identity: parameters, buffers, state of the optimizer. Buffers that are not saved are constants."""
    trainer = _trainer(norm, scale, optimizer)
    net = trainer.net
    trainer.step()
    saved = {value.data_ptr() for value in trainer.tensors().values()}
    state = [value for values in trainer.optimizer.state.values() for value in values.values()]
    assert len(state) == {"sgd": 1, "adam": 3}[optimizer] * len(list(net.parameters()))
    assert [value.shape for value in (*net.parameters(), *state) if value.data_ptr() not in saved] == []
    constant = {name: value for name, value in net.named_buffers() if value.data_ptr() not in saved}
    others = dict(_trainer(norm, scale, optimizer, seed=1).net.named_buffers())
    assert [name for name, value in constant.items() if not torch.equal(value, others[name])] == []
    assert [name for name, module in net.named_modules() if _hidden(module)] == []


def _hidden(module: nn.Module) -> list[str]:
    """Tensors in attributes: neither parameters nor buffers."""
    return [name for name, value in vars(module).items() if isinstance(value, Tensor)]


def test_counters_are_saved_and_nothing_else_changes() -> None:
    """What a trainer has besides its tensors, after a step and before it, differs in its counters alone."""
    trainer = _trainer("analytic", "bayes", "sgd")
    plain = (int, float, str, bool, dict, type(None))
    before = {key: repr(value) for key, value in vars(trainer).items() if isinstance(value, plain)}
    trainer.step()
    after = {key: repr(value) for key, value in vars(trainer).items() if isinstance(value, plain)}
    assert {key for key in after if after[key] != before[key]} <= set(trainer.counters())
