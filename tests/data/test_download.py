import hashlib
import resource
import socket
import sys
from pathlib import Path

import pytest

from bayesnorm.data.download import download
from bayesnorm.errors import DataError

CONTENT = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def target(tmp_path, server):
    server.content = CONTENT
    return tmp_path / "new" / "file.tar.gz"


def part(target):
    return target.with_name(target.name + ".part")


def left(target):
    return sorted(path.name for path in target.parent.iterdir())


def fails(server, target, *words, sha256=DIGEST):
    with pytest.raises(DataError) as caught:
        download(server.url, target, sha256)
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, server.url):
        assert word in message
    assert not target.exists()
    return message


def test_whole_file_with_progress(server, target):
    seen = []
    assert download(server.url, target, DIGEST, lambda done, total: seen.append((done, total))) == target
    assert target.read_bytes() == CONTENT
    assert left(target) == [target.name]
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_length_that_is_not_told(server, target):
    server.sized = False
    seen = []
    download(server.url, target, DIGEST, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), None)


def test_dropped_connection_is_resumed(server, target):
    server.drop = 300_000
    fails(server, target, "ended after 300,000 of 1,024,000 bytes", "300,000 bytes received are kept", "again")
    assert part(target).read_bytes() == CONTENT[:300_000]
    seen = []
    download(server.url, target, DIGEST, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert server.ranges_seen == [None, "bytes=300000-"]
    assert seen[0] == (300_000, len(CONTENT))
    assert left(target) == [target.name]


def test_server_without_ranges_starts_again(server, target):
    server.ranges, server.drop = False, 300_000
    fails(server, target, "are kept")
    server.drop = 100_000
    fails(server, target, "ended after 100,000")
    assert part(target).read_bytes() == CONTENT[:100_000]
    download(server.url, target, DIGEST)
    assert target.read_bytes() == CONTENT


def test_part_of_something_else_that_is_too_long(server, target):
    target.parent.mkdir()
    part(target).write_bytes(b"x" * (len(CONTENT) + 5))
    download(server.url, target, DIGEST)
    assert target.read_bytes() == CONTENT
    assert server.ranges_seen == [f"bytes={len(CONTENT) + 5}-", None]


def test_part_of_something_else_is_deleted_by_its_digest(server, target):
    target.parent.mkdir()
    part(target).write_bytes(b"x" * 100)
    fails(server, target, "SHA-256", DIGEST, hashlib.sha256(b"x" * 100 + CONTENT[100:]).hexdigest())
    assert left(target) == []
    download(server.url, target, DIGEST)
    assert target.read_bytes() == CONTENT


def test_complete_part_is_only_verified(server, target):
    target.parent.mkdir()
    part(target).write_bytes(CONTENT)
    download(server.url, target, DIGEST)
    assert target.read_bytes() == CONTENT
    assert server.ranges_seen == []


def test_target_that_is_right_is_left_alone_and_a_wrong_one_replaced(server, target):
    target.parent.mkdir()
    target.write_bytes(b"truncated")
    download(server.url, target, DIGEST)
    download(server.url, target, DIGEST)
    assert target.read_bytes() == CONTENT
    assert server.ranges_seen == [None]


def test_wrong_target_stays_until_the_right_one_is_complete(server, target):
    target.parent.mkdir()
    target.write_bytes(b"mine")
    server.drop = 100
    with pytest.raises(DataError, match="100 bytes received are kept"):
        download(server.url, target, DIGEST)
    assert target.read_bytes() == b"mine"


def test_wrong_content(server, target):
    server.content = b"another file"
    fails(server, target, hashlib.sha256(b"another file").hexdigest(), DIGEST, "deleted")
    assert left(target) == []


def test_part_that_was_not_asked_for(server, target):
    server.drop = 100
    fails(server, target, "100 bytes received are kept")
    server.wrong_start = True
    fails(server, target, "not asked for", "100 bytes received are kept")
    server.wrong_start = False
    download(server.url, target, DIGEST)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [404, 403, 500, 416])
def test_http_error(server, target, status):
    server.status = status
    assert fails(server, target, f"the server answers {status}", "nothing was received")


def test_answer_without_content(server, target):
    server.status = 204
    assert fails(server, target, "204")


def test_nobody_listens(target):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, so that nobody else takes the port, but not listening
        with pytest.raises(DataError, match=r"refused.*nothing was received: run the command again"):
            download(f"http://127.0.0.1:{held.getsockname()[1]}/file", target, DIGEST)
    assert left(target) == []


def test_silent_server(server, target, monkeypatch):
    monkeypatch.setattr(sys.modules["bayesnorm.data.download"], "TIMEOUT", 0.3)
    server.stall.clear()
    assert fails(server, target, "timed out")


def test_full_disk_keeps_what_fits(server, target):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        fails(server, target, "too large", "kept")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    size = part(target).stat().st_size
    assert 0 < size <= 200_000
    assert part(target).read_bytes() == CONTENT[:size]
    download(server.url, target, DIGEST)
    assert target.read_bytes() == CONTENT


def test_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert fails(server, tmp_path / "file" / "deeper" / "target", "cannot download")


@pytest.mark.parametrize("url", ["http://example.org/a", "ftp://example.org/a", "file:///etc/hostname", "a"])
def test_only_https(url, tmp_path):
    with pytest.raises(DataError, match="only https"):
        download(url, tmp_path / "a", DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_redirection_away_from_https(server, target):
    server.status, server.location = 302, "http://example.org/file.tar.gz"
    with pytest.raises(DataError, match=r"http://example\.org/file\.tar\.gz: only https"):
        download(server.url, target, DIGEST)
    assert left(target) == []


def test_pickle_in_place_of_the_part_is_not_run(server, target, malicious):
    target.parent.mkdir()
    part(target).write_bytes(malicious.content)
    fails(server, target, "SHA-256")
    assert not malicious.ran


def test_a_failing_progress_keeps_what_arrived(server, target):
    def stop(done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.url, target, DIGEST, stop)
    assert CONTENT.startswith(part(target).read_bytes())
    assert part(target).stat().st_size > 0
    assert download(server.url, target, DIGEST) == Path(target)
