import errno
import json
import os

import pytest

from bayesnorm.errors import RunError
from bayesnorm.train import durable
from bayesnorm.train.durable import DamagedError, read_sealed, sealed, sweep, unsealed, write

DOCUMENT = {"step": 3, "nested": {"lr": 0.1, "name": "ä", "none": None}, "list": [1, 2.5, "x"]}


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.json"
    for content in (b"first", b"", b"second" * 1000):
        write(path, content)
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(function, tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write(path, b"old")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable.os, function, full)
    with pytest.raises(
        RunError, match=r"a\.json could not be written \(No space left on device\): make room"
    ) as caught:
        write(path, b"new")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_disk_before_the_name(tmp_path, monkeypatch):
    """fsync of the file, then the rename, then fsync of the folder."""
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(durable.os, "fsync", lambda handle: calls.append("fsync") or fsync(handle))
    monkeypatch.setattr(durable.os, "replace", lambda *names: calls.append("replace") or replace(*names))
    write(tmp_path / "a", b"content")
    assert calls == ["fsync", "replace", "fsync"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match=r"nowhere.*No such file or directory"):
        write(tmp_path / "nowhere" / "a", b"x")


def test_sweep_removes_what_a_killed_writer_left_and_nothing_else(tmp_path):
    (tmp_path / f".a.json.123{durable.TEMPORARY}").touch()
    kept = [tmp_path / name for name in ("a.json", ".lock", "b.tmp")]
    for path in kept:
        path.touch()
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    sweep(tmp_path / "nowhere")


def test_a_sealed_document_comes_back(tmp_path):
    path = tmp_path / "a.json"
    write(path, sealed(DOCUMENT))
    assert read_sealed(path) == DOCUMENT
    assert json.loads(path.read_text()).items() >= DOCUMENT.items(), "and anyone can read it"


def test_no_byte_can_change_unseen():
    content = sealed(DOCUMENT)
    for place in range(len(content)):
        for bit in (1, 32):
            damaged = bytearray(content)
            damaged[place] ^= bit
            with pytest.raises(DamagedError, match=r"x\.json is damaged"):
                unsealed(bytes(damaged), "x.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"{}", b"null", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, sealed(DOCUMENT)[:-5], sealed({})[1:]],
)
def test_what_is_no_sealed_document_is_damaged(content):
    with pytest.raises(DamagedError):
        unsealed(content, "x.json")


def test_not_a_number_is_not_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        sealed({"loss": float("nan")})
