"""Files that commands write beside runs."""

from __future__ import annotations

from pathlib import Path

from ..errors import RunError


def refuse_unfit(option: str, path: Path) -> None:
    """A file that cannot be written there, or would lie among those of a run, is refused before anything is done."""
    inside = next((place for place in path.absolute().parents if _is_run(place)), None)
    if inside is not None:
        raise RunError(f"{option} {path} is in the folder of a run, {inside}: choose a file outside of it")
    if path.is_dir():
        raise RunError(f"{option} {path} is a folder: name a file")
    below = next((place for place in path.parents if place.is_file()), None)
    if below is not None:
        raise RunError(f"{option} {path}: {below} is a file, not a folder; choose another place")


def _is_run(folder: Path) -> bool:
    return (folder / "config.json").exists() and (folder / "events.jsonl").exists()
