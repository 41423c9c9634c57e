import contextlib
import pickle
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


class _Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.marker,)


class Malicious:
    """A pickle that would make ``marker``."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker
        self.content = pickle.dumps(_Touch(marker))

    @property
    def ran(self) -> bool:
        return self.marker.exists()


@pytest.fixture
def malicious(tmp_path: Path) -> Malicious:
    """The pickle, after a proof that it does harm."""
    made = Malicious(tmp_path / "marker")
    pickle.loads(made.content)
    assert made.ran
    made.marker.unlink()
    return made


class Server(ThreadingHTTPServer):
    """Serves ``content`` at every address.

    ``ranges``: whether it goes on from where it is asked to. ``drop``: bytes of a body after which the connection
    breaks, once. ``status``: instead of an answer. ``location``: of a redirection. ``stall``: never send the body.
    ``sized``: whether the length is announced. ``ranges_seen``: the Range header of every request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = b""
        self.ranges = True
        self.drop: int | None = None
        self.status: int | None = None
        self.location = ""
        self.wrong_start = False
        self.sized = True
        self.stall = threading.Event()
        self.stall.set()
        self.ranges_seen: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file.tar.gz"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers["Range"]
        server.ranges_seen.append(asked)
        if server.status is not None:
            self._head(server.status, 0, Location=server.location)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.ranges else 0
        if start and start >= len(server.content):
            self._head(416, 0)
            return
        body = server.content[start:]
        told = start + 1 if server.wrong_start else start
        if start:
            span = f"bytes {told}-{len(server.content) - 1}/{len(server.content)}"
            self._head(206, len(body), **{"Content-Range": span})
        else:
            self._head(200, len(body) if server.sized else None)
        drop, server.drop = server.drop, None
        server.stall.wait(10)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # of a client that has seen enough
            self.wfile.write(body[:drop])

    def _head(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield made
        made.stall.set()
        made.shutdown()
        thread.join()
