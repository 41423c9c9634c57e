"""Download of one file: resumable, checked by SHA-256, complete or absent."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from .._files import sync_folder
from ..errors import DataError

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes of the whole (None: the server does not say)."""

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

BLOCK = 1 << 18
LOCAL = ("localhost", "127.0.0.1", "::1")


def download(url: str, target: Path, sha256: str, progress: Progress | None = None) -> Path:
    """Fetch ``url`` to ``target``, which appears only once its digest is right.

    What arrives is kept in ``target.part``; the next call goes on from there. A ``target`` with the right digest is
    returned as it is, one with another digest is replaced.

    Arguments:
        url: https; plain http only to this machine.
        target: path of the file; its folder is made.
        sha256: expected digest of the whole, in hexadecimal.
        progress: see ``Progress``.
    """
    _check_address(url)
    part = target.with_name(target.name + ".part")
    try:
        if target.is_file() and file_sha256(target) == sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (part.is_file() and file_sha256(part) == sha256):
            _receive(url, part, progress)
        _check_digest(url, part, sha256)
        _publish(part, target)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(f"cannot download {url} to {target}: {_reason(error)}; {_kept(part)}") from error
    return target


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    """Append to ``part`` what is missing; a server that cannot go on from there starts again."""
    have = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, have)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or have == 0:
            raise
        error.close()
        response, have = _open(url, 0), 0
    with response:
        if not _continues(response, have):
            have = 0
        with part.open("ab") as file:
            file.truncate(have)
            _copy(response, file, have, progress)
            file.flush()
            os.fsync(file.fileno())


def _copy(response: http.client.HTTPResponse, file: IO[bytes], done: int, progress: Progress | None) -> None:
    total = None if response.length is None else done + response.length
    if progress is not None:
        progress(done, total)
    while total is None or done < total:
        # read1 hands over what has arrived: read would lose it when the connection breaks before the block is full.
        block = response.read1(BLOCK if total is None else min(BLOCK, total - done))
        if not block:
            break
        file.write(block)
        done += len(block)
        if progress is not None:
            progress(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _open(url: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "bayesnorm", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    opener = urllib.request.build_opener(_Redirect)
    response: http.client.HTTPResponse = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    return response


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the body is the rest after ``have`` bytes, and not the whole file."""
    if response.status == http.HTTPStatus.OK:
        return False
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if response.status != http.HTTPStatus.PARTIAL_CONTENT or found is None or int(found[1]) != have:
        raise ConnectionError(f"the server answers {response.status} with a part that was not asked for")
    return True


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows a redirection only to an address that would be accepted itself."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """As urllib does, after a look at the new address."""
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(url: str) -> None:
    address = urllib.parse.urlsplit(url)
    if not (address.scheme == "https" or (address.scheme == "http" and address.hostname in LOCAL)):
        raise DataError(f"{url}: only https addresses are downloaded from; fetch the file by hand instead")


def _check_digest(url: str, part: Path, sha256: str) -> None:
    found = file_sha256(part)
    if found != sha256:
        part.unlink()
        raise DataError(
            f"{url}: SHA-256 of what arrived is {found}, expected {sha256}; it was deleted: run the command again"
        )


def _publish(part: Path, target: Path) -> None:
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, target)
    sync_folder(target.parent)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror} ({error.filename})"
    return str(error) or type(error).__name__


def _kept(part: Path) -> str:
    size = part.stat().st_size if part.is_file() else 0
    if size == 0:
        return "nothing was received: run the command again"
    return f"the {size:,} bytes received are kept: run the command again to go on"
