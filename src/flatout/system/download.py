"""Resumable downloads, from the first address that serves the right content."""

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
from flatout.system import atomic_files

_CHUNK_BYTES = 256 * 1024
_SILENCE_S = 20.0
_PAUSE_S = 0.2
# Slower than this for so long, and a server is given up: each byte on its own ends the silence.
_LEAST_BYTES_PER_S = 1024
_SLOW_S = 60.0
# A mirror may have compressed a file in its own way, but a server cannot fill the disk.
_MOST_FACTOR = 2
_MOST_MORE_BYTES = 1024**2
_MOST_UNKNOWN_BYTES = 20 * 1024**3

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
        path: where it is put when it is whole and right; until then it grows next to that place.
        expected_bytes: its size, for where the server does not report it; 0 where it is not known.
            No more than about twice as much is taken in.
        check: says what is wrong with a downloaded file, None if nothing is.
        opener: opens addresses; None is Python's own.

    Raises:
        RunFailed: download-failed, disk-full.
    """
    part = atomic_files.part_path(path)
    _drop_link(part)
    reasons = []
    for url in urls:
        num_barren = 0
        for _ in range(_TRIES):
            start_bytes = _size_bytes(part)
            try:
                yield from _continue(url, part, expected_bytes, opener)
            except (http.client.HTTPException, OSError) as error:
                reason = _reason(error)
                num_barren += _size_bytes(part) <= start_bytes
                is_refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if isinstance(error, _TooLarge):
                    is_refused = True
                    with atomic_files.mapped_os_errors(part):
                        part.unlink(missing_ok=True)
            else:
                wrong = check(part)
                with atomic_files.mapped_os_errors(path):
                    if wrong is None:
                        atomic_files.move_into_place(part, path)
                        return
                    part.unlink(missing_ok=True)
                reason = wrong
                # What was assembled from two downloads may be wrong only for that.
                is_refused = start_bytes == 0
            reasons.append(f"{url}: {reason}")
            if is_refused or num_barren == _BARREN_TRIES:
                break
            time.sleep(_PAUSE_S)
    raise RunFailed(
        "download-failed",
        f"could not download {path.name}.",
        because="; ".join(dict.fromkeys(reasons)),
        fix="check the network (and HTTPS_PROXY, if you need a proxy), or put the file into "
        f"{path.parent}",
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
        # 416: nothing is behind what already exists; its checksum decides.
        if error.code == 416 and start_bytes:
            return
        raise
    with response:
        if response.status == 206:
            content_range = response.headers.get("Content-Range", "")
            if not content_range.startswith(f"bytes {start_bytes}-"):
                raise http.client.HTTPException(
                    f"requested from byte {start_bytes}, got {content_range!r}"
                )
        else:
            start_bytes = 0
        length = response.headers.get("Content-Length", "")
        all_bytes = start_bytes + int(length) if length.isdigit() else expected_bytes
        most_bytes = _MOST_FACTOR * expected_bytes + _MOST_MORE_BYTES
        pace = _MinimumSpeed()
        with atomic_files.mapped_os_errors(part):
            file = FileIO(part, "a" if start_bytes else "w")
        with file:
            done_bytes = start_bytes
            yield done_bytes, all_bytes
            # Not `read`, which waits until a chunk is full, however slowly that goes.
            while chunk := response.read1(_CHUNK_BYTES):
                _write(file, chunk, part)
                done_bytes += len(chunk)
                if done_bytes > (most_bytes if expected_bytes else _MOST_UNKNOWN_BYTES):
                    raise _TooLarge(f"it is larger than {done_bytes - len(chunk):,} bytes")
                pace.add(len(chunk))
                yield done_bytes, all_bytes
            with atomic_files.mapped_os_errors(part):
                os.fsync(file.fileno())
    if length.isdigit() and done_bytes < all_bytes:
        raise ConnectionError(f"the connection ended after {done_bytes} of {all_bytes} bytes")


class _TooLarge(ConnectionError):
    """A server sends more than the file can be."""


class _MinimumSpeed:
    """The speed of a download; a server that is too slow for too long is given up."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Counts bytes that have come.

        Raises:
            ConnectionError: too few have come for too long.
        """
        self._num_bytes += num_bytes
        passed_s = time.monotonic() - self._begun_s
        if passed_s < _SLOW_S:
            return
        if self._num_bytes < _LEAST_BYTES_PER_S * passed_s:
            raise ConnectionError(f"only {self._num_bytes:,} bytes arrived in {passed_s:.0f} s")
        self._begun_s, self._num_bytes = time.monotonic(), 0


def _drop_link(part: Path) -> None:
    """Removes a link where a download is put: what it leads to is not flatout's to write."""
    with atomic_files.mapped_os_errors(part):
        if part.is_symlink():
            part.unlink()


def _write(file: FileIO, chunk: bytes, part: Path) -> None:
    # Unbuffered: a full disk is reported here, and what a kill leaves is as long as was shown.
    with atomic_files.mapped_os_errors(part):
        rest = memoryview(chunk)
        while rest:
            rest = rest[file.write(rest) :]


def _size_bytes(path: Path) -> int:
    with atomic_files.mapped_os_errors(path):
        return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
