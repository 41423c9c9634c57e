"""Checkpoints: tensors in safetensors, counters and checksums in a manifest that is written last."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from ..errors import RunError
from . import durable
from .durable import DamagedError

FORMAT = 1
FIRST = "save-000001"
KEPT = 2
"""Generations: if the last one is damaged, the one before it is used."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run between two steps.

    Arguments:
        step: steps taken.
        counters: where the run is, JSON.
        tensors: network, optimizer, generators.
        about: configuration of the run, JSON.
        path: its manifest, once it is on disk.
    """

    step: int
    counters: dict[str, Any]
    tensors: dict[str, Tensor]
    about: dict[str, Any]
    path: Path | None = None


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, complete or not at all, and forget the generations before the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    before = latest(folder)
    # A number of its own, never an old name: the manifest of that name would vouch for tensors that are being replaced.
    name = f"save-{1 if before is None else int(before.stem.removeprefix('save-')) + 1:06d}"
    content = write_tensors({key: _own(value) for key, value in checkpoint.tensors.items()})
    data, manifest = folder / f"{name}.safetensors", folder / f"{name}.json"
    durable.write(data, content)
    document = {
        "format": FORMAT,
        "step": checkpoint.step,
        "counters": checkpoint.counters,
        "about": checkpoint.about,
        "file": {"name": data.name, "bytes": len(content), "sha256": durable.sha256(content)},
    }
    try:
        durable.write(manifest, durable.sealed(document))
    except RunError:
        data.unlink(missing_ok=True)
        raise
    for old in _manifests(folder)[KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)
    return manifest


def load(folder: Path) -> Checkpoint | None:
    """The latest checkpoint that is intact; None if there never was one.

    A damaged one is named in a warning and the one before it is used.
    """
    damaged: list[str] = []
    for manifest in _manifests(folder):
        try:
            checkpoint = _read(manifest)
        except DamagedError as error:
            damaged.append(str(error))
            continue
        for message in damaged:
            warnings.warn(f"{message}; going back to step {checkpoint.step}", stacklevel=2)
        return checkpoint
    if damaged:
        raise RunError(f"no checkpoint is intact ({'; '.join(damaged)}): restore the files, or start anew elsewhere")
    return None


def latest(folder: Path) -> Path | None:
    """Manifest of the latest checkpoint, without looking into it."""
    return next(iter(_manifests(folder)), None)


def orphan(folder: Path) -> Path | None:
    """The last tensors, where there is no manifest at all: only those of the very first save may be of half a one."""
    found = sorted(folder.glob("save-*.safetensors"))
    return found[-1] if found and latest(folder) is None else None


def clean(folder: Path, used: Path | None = None) -> None:
    """Remove what an interrupted save left, temporary files and tensors without a manifest.

    Checkpoints after the one that is ``used``, which are damaged, are set aside: they are no generation to keep.
    """
    durable.sweep(folder)
    for damaged in _manifests(folder) if used else []:
        if damaged == used:
            break
        for path in (damaged.with_suffix(".safetensors"), damaged):
            if path.exists():
                path.rename(path.with_name(f"damaged-{path.name}"))
    for data in folder.glob("save-*.safetensors"):
        if not data.with_suffix(".json").exists():
            data.unlink()


def _own(value: Tensor) -> Tensor:
    """A copy: the format holds no two names of one memory, as tied weights have."""
    return value.detach().to("cpu", copy=True).contiguous()


def _manifests(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("save-*.json") if path.stem.removeprefix("save-").isdigit())
    return sorted(found, key=lambda path: int(path.stem.removeprefix("save-")), reverse=True)


def _read(manifest: Path) -> Checkpoint:
    document = durable.read_sealed(manifest)
    if document["format"] != FORMAT:
        raise RunError(
            f"{manifest} has format {document['format']}, this version of bayesnorm reads format {FORMAT}: use the "
            "version that config.json names"
        )
    path = manifest.with_name(document["file"]["name"])
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing") from error
    if durable.sha256(content) != document["file"]["sha256"]:
        raise DamagedError(f"{path} is damaged: its content does not match its checksum")
    try:
        tensors = read_tensors(content)
    except SafetensorError as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    return Checkpoint(document["step"], document["counters"], tensors, document["about"], manifest)
