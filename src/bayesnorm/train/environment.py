"""Where a run was made: versions, hardware, command, source."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("bayesnorm", "torch", "numpy", "scipy", "safetensors")


def environment(device: torch.device, world: int) -> dict[str, Any]:
    """What a reader needs to repeat a run, JSON."""
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": _commit(),
        "source": _source(),
        "command": sys.argv,
        "platform": _platform(),
        "kind": device.type,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": world,
    }


def _source() -> str:
    """SHA-256 of the library's own files: tells them apart where it is neither installed nor in a repository."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _platform() -> str:
    """Without the name of the kernel, which says nothing about results."""
    libc = "".join(platform.libc_ver())
    return f"{platform.system()}-{platform.machine()}" + (f"-with-{libc}" if libc else "")


def portable(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The same without what only the machine knows: of paths in the command the last part, and no platform."""
    kept = {key: value for key, value in environment.items() if key != "platform"}
    return {**kept, "command": [_name(word) for word in environment.get("command") or []]}


def _name(word: str) -> str:
    """Of a path the last part, also behind ``--option=``.

    >>> _name("/a/b.json"), _name("--out=/a/b"), _name("data")
    ('b.json', '--out=b', 'data')
    """
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return option + equals + (Path(value).name if Path(value).is_absolute() else value)


def version(name: str) -> str | None:
    """Of an installed package; None if it is not."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return torch.__version__ if name == "torch" else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """Commit of the source, read from the repository's files (git itself may run what a repository configures)."""
    root = next((folder for folder in Path(__file__).parents if (folder / ".git").exists()), None)
    if root is None:
        return None
    try:
        git = root / ".git"
        if git.is_file():  # a worktree
            git = root / git.read_text().removeprefix("gitdir: ").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
        if (common / name).exists():
            return (common / name).read_text().strip()
        packed = (line.split() for line in (common / "packed-refs").read_text().splitlines())
        return next((words[0] for words in packed if words[1:] == [name]), None)
    except OSError:
        return None


SAME = ("python", "versions", "device", "threads", "processes")
"""What has to agree for a resumed run to be bitwise the same."""


def changed(stored: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first of these that has changed, in words."""
    for key in SAME:
        if stored.get(key) != now.get(key):
            return f"{key} was {stored.get(key)!r}, now it is {now.get(key)!r}"
    return None


def typed(command: Sequence[str]) -> str:
    """A command as a person types it.

    >>> typed(["/somewhere/bin/bayesnorm", "train", "--out", "a b"])
    "bayesnorm train --out 'a b'"
    """
    first = ["bayesnorm"] if command and Path(command[0]).stem in ("bayesnorm", "__main__") else list(command[:1])
    return shlex.join([*first, *command[1:]])
