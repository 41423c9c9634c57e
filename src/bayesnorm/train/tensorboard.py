"""Curves for TensorBoard, as a callback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .events import Callback, EpochEnded, Event, Started


@contextmanager
def tensorboard(folder: str | Path) -> Iterator[Callback]:
    """A callback that writes every number of every epoch; a resumed run replaces what came after its checkpoint."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("TensorBoard is not installed: pip install 'bayesnorm[tensorboard]'") from error
    writers: list[SummaryWriter] = []

    def write(event: Event) -> None:
        if isinstance(event, Started):
            writers.append(SummaryWriter(str(folder), purge_step=event.epoch + 1 if event.epoch else None))
        elif isinstance(event, EpochEnded):
            record = event.record
            ratios = record.get("sigma_over_s", {})
            flat = {**record, **{f"sigma_over_s/{name}": value for name, value in ratios.items()}}
            for name, value in flat.items():
                if isinstance(value, (int, float)) and name not in ("epoch", "step"):
                    writers[-1].add_scalar(name, value, record["epoch"])
            writers[-1].flush()

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
