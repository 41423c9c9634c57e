"""What each of several processes does in ``test_distributed.py``; started by torchrun, results in the folder given."""

import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from small_data import ALONE, made_up, network, state, trained

from bayesnorm.data.augment import Augment
from bayesnorm.data.base import IGNORE, Data, Split
from bayesnorm.errors import DivergedError
from bayesnorm.train import Config, find_lr, fit
from bayesnorm.train.events import Event
from bayesnorm.train.world import World

STEPS = 20
MOVES = Augment(shift=1, hflip=True)


@dataclass(frozen=True)
class Case:
    """A network, its data and how it is trained."""

    norm: str | None
    scale: str = "point"
    train: int = 48
    pixels: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    blank: bool = False

    def data(self) -> Data:
        """With ``blank``, half of the images are not annotated at all."""
        data = made_up(self.train, 15, pixels=self.pixels, augment=MOVES)
        if not self.blank:
            return data
        targets = data.train.targets.clone()
        targets[::2] = IGNORE
        return replace(data, train=Split(data.train.images, targets))

    def run(self, world: World) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """State after the steps, and the measurements."""
        config = Config(**{"batch": 12, "epochs": 6, **self.options})
        net = network(self.norm, self.scale, self.pixels)
        trainer = trained(net, self.data(), config, 0.02, STEPS, world)
        return state(net), {"sums": trainer.sums, **trainer.measure()}


SYNC = {"sync_bn": True}
CASES = {
    "none": Case(None),
    "weight+bayes": Case("weight", "bayes"),
    "weight+noise": Case("weight", "noise"),
    "analytic+bayes": Case("analytic", "bayes"),
    "analytic+bayes, unequal shares": Case("analytic", "bayes", 45, options={"batch": 7, "clip": 0.5}),
    "weight+bayes, Adam": Case("weight", "bayes", options={"optimizer": "adam"}),
    "batch, synchronized": Case("batch", options=SYNC),
    "batch+bayes, synchronized, unequal shares": Case("batch", "bayes", 45, options={**SYNC, "batch": 7}),
    "batch, synchronized, more samples": Case("batch", options={**SYNC, "norm_batch": 37}),
    "segmentation": Case("analytic", "bayes", 15, True, {"batch": 3}),
    "segmentation, synchronized": Case("batch", "bayes", 16, True, {"batch": 4, **SYNC}),
    "segmentation, shares without a target": Case("weight", "bayes", 16, True, {"batch": 4}, blank=True),
}
LOCAL = Case("batch", options={"batch": 12})
RUN = Config(epochs=2, batch=16, lr_trials=2, lr_epochs=1)
"""Of the runs in a folder: 48 samples, so 6 steps."""


def steps(world: World, out: Path) -> None:
    """All cases, into a file of this process."""
    tensors, records = {}, {}
    for name, case in {**CASES, "local": LOCAL}.items():
        try:
            found, records[name] = case.run(world)
        except DivergedError as error:
            records[name] = {"error": str(error)}
        else:
            tensors |= {f"{name}/{key}": value.contiguous() for key, value in found.items()}
    safetensors.torch.save_file(tensors, out / f"steps-{world.rank}.safetensors")
    (out / f"steps-{world.rank}.json").write_text(json.dumps(records))


def runs(world: World, out: Path) -> None:
    """A run in a folder, and what becomes of it when it is asked for again."""
    events: list[Event] = []
    found: dict[str, Any] = {"errors": {}}
    run = fit(network("weight", "bayes"), made_up(), RUN, out=out / "run", callbacks=[events.append])
    found |= {"lr": run.lr, "events": len(events), "epochs": len(run.history), "digest": run.result["digest"]}
    local = fit(network("batch"), made_up(), replace(RUN, lr=0.05), out=out / "local")
    found["local"] = local.history
    dist.barrier()
    if world.writes:
        (out / "run" / "result.json").unlink()
    dist.barrier()
    for name, again in (("end", fit), ("search", find_lr)):
        try:
            again(network("weight", "bayes"), made_up(), RUN, out=out / "run", resume=True)
        except Exception as error:
            found["errors"][name] = repr(error)
        dist.barrier()
    (out / f"runs-{world.rank}.json").write_text(json.dumps(found))


def main(out: Path) -> None:
    """Everything, in the processes that torchrun started."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = World.current(ALONE.device)
    assert (world.rank, world.size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    steps(world, out)
    runs(world, out)
    dist.barrier()
    # All results are on disk. gloo's threads were seen to abort a process that had finished ("terminate called without
    # an active exception") while it was torn down, which is not what is tested here.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
