"""R6: no file of a run can run code. The scan of the source is in ``tests/test_package.py``."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from promises.runs import Commands, checkpoints

FILES = [
    *("config.json", "metrics.jsonl", "events.jsonl", "result.json", "lr_search.json", "evaluation-test.json"),
    *("checkpoints/save-000002.json", "checkpoints/save-000002.safetensors", ".lock"),
]


class _Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.marker,)


def _both(marker: Path, scratch: Path) -> list[bytes]:
    """As pickle writes it, and as torch.save does."""
    torch.save(_Touch(marker), scratch)
    return [pickle.dumps(_Touch(marker)), scratch.read_bytes()]


def test_the_payload_does_harm_where_it_is_unpickled(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickle.loads(_both(marker, tmp_path / "saved")[0])
    assert marker.exists()
    marker.unlink()
    torch.load(tmp_path / "saved", weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_in_place_of_a_file(
    command: Commands, searched: Path, copy: Callable[[Path], Path], tmp_path: Path, name: str
) -> None:
    marker = tmp_path / "marker"
    payloads = _both(marker, tmp_path / "saved")
    folder = copy(searched)
    for payload in payloads if name.endswith(".safetensors") else payloads[:1]:
        (folder / name).write_bytes(payload)
        for args in (("runs", folder), ("eval", folder, "--samples", "0")):
            assert command(*args).status == 0
            assert not marker.exists()
        assert command("train", "--samples", "0", "--out", folder, "--resume").status == 0
        assert not marker.exists()


def test_pickles_in_all_files_at_once(
    command: Commands, searched: Path, copy: Callable[[Path], Path], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    folder = copy(searched)
    older = checkpoints(folder)[0]
    for path in (*(folder / name for name in FILES), older, older.with_suffix(".safetensors")):
        path.write_bytes(_both(marker, tmp_path / "saved")[0])
    statuses = [
        command(*args).status for args in (("runs", folder), ("eval", folder), ("train", "--out", folder, "--resume"))
    ]
    assert statuses == [0, 1, 1]
    assert not marker.exists()
