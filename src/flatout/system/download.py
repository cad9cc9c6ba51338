"""Downloads that go on where they broke off, from the first address that gives what is right."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from urllib.request import OpenerDirector

from flatout.errors import RunFailed
from flatout.system import store

_CHUNK_BYTES = 256 * 1024
_SILENCE_S = 20.0
_PAUSE_S = 0.2

# An address is given up after so many tries, and earlier if so many of them brought nothing.
_TRIES = 5
_BARREN_TRIES = 2


def download(
    urls: Sequence[str],
    path: Path,
    expected_bytes: int,
    check: Callable[[Path], str | None],
    opener: OpenerDirector | None = None,
) -> Iterator[tuple[int, int]]:
    """Downloads a file while it is iterated over; yields bytes done and bytes in all.

    Args:
        urls: addresses of the same file, tried in this order.
        path: where it is put when it is whole and right; until then it grows beside that place.
        expected_bytes: its size, for where the server does not tell it.
        check: says what is wrong with a downloaded file, None if nothing is.
        opener: opens addresses; None is Python's own.

    Raises:
        RunFailed: download-failed, disk-full.
    """
    part = store.part_path(path)
    reasons = []
    for url in urls:
        num_barren = 0
        for _ in range(_TRIES):
            start_bytes = _size_bytes(part)
            try:
                yield from _continue(url, part, expected_bytes, opener)
            except (http.client.HTTPException, OSError) as error:
                reason = _told(error)
                num_barren += _size_bytes(part) <= start_bytes
                is_refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            else:
                wrong = check(part)
                with store.mapped_os_errors(path):
                    if wrong is None:
                        store.move_into_place(part, path)
                        return
                    part.unlink(missing_ok=True)
                reason = wrong
                # What was put together from two downloads may be wrong only for that.
                is_refused = start_bytes == 0
            reasons.append(f"{url}: {reason}")
            if is_refused or num_barren == _BARREN_TRIES:
                break
            time.sleep(_PAUSE_S)
    raise RunFailed(
        "download-failed",
        f"could not download {path.name}.",
        because="; ".join(dict.fromkeys(reasons)),
        fix=f"check the network (HTTPS_PROXY, if you need one), or put it into {path.parent}",
    )


def _continue(
    url: str, part: Path, expected_bytes: int, opener: OpenerDirector | None
) -> Iterator[tuple[int, int]]:
    """Adds to `part` what it lacks, or begins again if the server gives no ranges."""
    start_bytes = _size_bytes(part)
    request = urllib.request.Request(url, headers={"User-Agent": "flatout"})
    if start_bytes:
        request.add_header("Range", f"bytes={start_bytes}-")
    try:
        open_ = opener.open if opener else urllib.request.urlopen
        response = open_(request, timeout=_SILENCE_S)
    except urllib.error.HTTPError as error:
        error.close()
        # 416: nothing lies behind what is there already; its checksum decides.
        if error.code == 416 and start_bytes:
            return
        raise
    with response:
        if response.status == 206:
            told = response.headers.get("Content-Range", "")
            if not told.startswith(f"bytes {start_bytes}-"):
                raise http.client.HTTPException(f"asked from byte {start_bytes}, got {told!r}")
        else:
            start_bytes = 0
        length = response.headers.get("Content-Length", "")
        all_bytes = start_bytes + int(length) if length.isdigit() else expected_bytes
        with store.mapped_os_errors(part):
            file = FileIO(part, "a" if start_bytes else "w")
        with file:
            done_bytes = start_bytes
            yield done_bytes, all_bytes
            while chunk := response.read(_CHUNK_BYTES):
                _write(file, chunk, part)
                done_bytes += len(chunk)
                yield done_bytes, all_bytes
            with store.mapped_os_errors(part):
                os.fsync(file.fileno())
    if length.isdigit() and done_bytes < all_bytes:
        raise ConnectionError(f"the connection ended after {done_bytes} of {all_bytes} bytes")


def _write(file: FileIO, chunk: bytes, part: Path) -> None:
    # Unbuffered: a full disk is told here, and what a kill leaves is as long as was shown.
    with store.mapped_os_errors(part):
        rest = memoryview(chunk)
        while rest:
            rest = rest[file.write(rest) :]


def _size_bytes(path: Path) -> int:
    with store.mapped_os_errors(path):
        return path.stat().st_size if path.exists() else 0


def _told(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
