"""Several processes, started by torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
import torch.distributed as dist


@contextmanager
def distributed() -> Iterator[None]:
    """Join the other processes, if torchrun has started any."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        if not _is_program():
            dist.destroy_process_group()


def end(status: int) -> NoReturn:
    """End the program with this status.

    Of several processes each ends at once: gloo's threads were seen to abort one that had finished ("terminate called
    without an active exception") while they were torn down.
    """
    if is_distributed():
        if status == 0:
            dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _is_program() -> bool:
    """Whether this process is ``python -m bayesnorm``, which ends by ``end``."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "bayesnorm.__main__"


def is_distributed() -> bool:
    """Whether there are other processes."""
    return dist.is_initialized()


def is_first() -> bool:
    """Whether this process prints."""
    return not is_distributed() or dist.get_rank() == 0


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one; with several processes each has its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device {name}: choose auto, cpu, cuda or cuda:0, cuda:1, ...") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {name}: choose auto, cpu, cuda or cuda:0, cuda:1, ...")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"--device {name}: no CUDA device is available; choose cpu")
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ValueError(f"--device {name}: there are {torch.cuda.device_count()}, counted from 0")
    return device
