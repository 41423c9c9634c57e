"""Calls that are made at once."""

import fcntl
from pathlib import Path

import pytest
from alone import Alone


def test_calls_share_while_they_build_and_are_alone_while_they_measure(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Alone(path) as alone, path.open() as other:
        with pytest.raises(BlockingIOError):  # another call builds
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_UN)
        with alone.measuring(), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_without_a_file_nobody_waits() -> None:
    with Alone() as one, Alone() as other, one.measuring(), other.measuring():
        assert one.file is other.file is None
