"""Downloaded wheels: each is stored once, by its hash, for any number of environments.

An interrupted download resumes where it stopped, also in another process.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import queue
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import OpenerDirector

import msgspec

from flatout.errors import FlatoutError, RunFailed
from flatout.schema.environment import Pin
from flatout.setup.packages.installers import untrusted
from flatout.system import atomic_files
from flatout.system.download import download
from flatout.system.http import without_password
from flatout.system.paths import cache_folder

_AT_ONCE = 4
_REQUEST_TIMEOUT_S = 20.0
_REPORT_EVERY_S = 0.1
_PIECE_BYTES = 1024 * 1024


def wheels_folder() -> Path:
    """The folder of wheels."""
    return cache_folder() / "wheels"


def path_of(pin: Pin) -> Path:
    """The path of a wheel, downloaded or not."""
    return wheels_folder() / pin.sha256[:24] / pin.file


def is_here(pin: Pin) -> bool:
    """Whether a wheel is downloaded; only complete files have the final name."""
    return bool(pin.sha256) and path_of(pin).is_file()


def find_local(pin: Pin, folder: Path | None) -> Path | None:
    """A wheel by its hash alone: in the store, or in a folder of wheels."""
    kept_folder = wheels_folder() / pin.sha256[:24]
    candidates: list[Path] = [*kept_folder.glob("*.whl"), *(folder.glob("*.whl") if folder else ())]
    file_stem = pin.name.replace("-", "_")
    for path in candidates:
        is_named = path.name.lower().replace("-", "_").replace(".", "_").startswith(f"{file_stem}_")
        if path.parent == kept_folder or (is_named and digest_of(path) == pin.sha256):
            return path
    return None


def measured(pins: Sequence[Pin], opener: OpenerDirector) -> tuple[Pin, ...]:
    """The same pins, with sizes that the index did not report, and hashes of local wheels."""
    sizes: dict[str, Pin] = {}

    def measure(pin: Pin) -> None:
        sizes[pin.name] = _measured(pin, opener)

    threads = [threading.Thread(target=measure, args=(pin,), daemon=True) for pin in pins
               if pin.size_bytes is None or not pin.sha256]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _REQUEST_TIMEOUT_S)
    return tuple(sizes.get(pin.name, pin) for pin in pins)


def fetch(pins: Sequence[Pin], opener: OpenerDirector) -> Iterator[tuple[int, int]]:
    """Downloads what is missing of these wheels; yields bytes done and bytes in total.

    Raises:
        RunFailed: wheel-without-hash, download-failed, certificate-not-trusted, disk-full.
    """
    for pin in pins:
        if not pin.sha256:
            raise RunFailed(
                "wheel-without-hash",
                f"the index publishes no SHA-256 for {pin.file}.",
                because="without it the download cannot be verified",
                fix="use an index or a mirror that publishes hashes (PEP 503)",
            )
    jobs: queue.SimpleQueue[Pin] = queue.SimpleQueue()
    missing = [pin for pin in pins if not is_here(pin)]
    for pin in missing:
        jobs.put(pin)
    total_bytes = sum(pin.size_bytes or 0 for pin in missing)
    crew = _DownloadPool(jobs, opener)
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            yield crew.done_bytes, max(total_bytes, crew.done_bytes)
            time.sleep(_REPORT_EVERY_S)
    finally:
        crew.is_over = True
    if crew.error:
        raise crew.error
    yield crew.done_bytes, max(total_bytes, crew.done_bytes)


def link_into(pins: Sequence[Pin], folder: Path) -> None:
    """Links wheels into a folder under their file names, without using disk space."""
    with atomic_files.mapped_os_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for pin in pins:
            try:
                os.link(path_of(pin), folder / pin.file)
            except OSError:
                # Another disk, or a file system without links.
                shutil.copyfile(path_of(pin), folder / pin.file)


def forget(folder: Path) -> None:
    """Removes a folder of wheels."""
    shutil.rmtree(folder, ignore_errors=True)


class _DownloadPool:
    """Downloads from a queue in several threads, until it is empty or one of them fails."""

    def __init__(self, jobs: queue.SimpleQueue[Pin], opener: OpenerDirector) -> None:
        self._jobs = jobs
        self._opener = opener
        self._bytes: dict[str, int] = {}
        self.error: FlatoutError | None = None
        self.is_over = False

    @property
    def done_bytes(self) -> int:
        """Bytes downloaded by all threads together."""
        return sum(list(self._bytes.values()))

    def work(self) -> None:
        """Downloads wheels until the queue is empty."""
        while not (self.is_over or self.error):
            try:
                pin = self._jobs.get_nowait()
            except queue.Empty:
                return
            try:
                self._fetch(pin)
            except FlatoutError as error:
                is_untrusted = "CERTIFICATE_VERIFY_FAILED" in (error.because or "")
                self.error = untrusted(error.because or "") if is_untrusted else error

    def _fetch(self, pin: Pin) -> None:
        path = path_of(pin)
        with atomic_files.mapped_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)

        def check(part: Path) -> str | None:
            digest = digest_of(part)
            return None if digest == pin.sha256 else f"its SHA-256 is {digest}, not {pin.sha256}"

        steps = download(
            [without_password(pin.url)], path, pin.size_bytes or 0, check, self._opener
        )
        for done_bytes, _ in steps:
            self._bytes[pin.name] = done_bytes
            if self.is_over or self.error:
                return


def digest_of(path: Path) -> str:
    """A file's SHA-256."""
    hasher = hashlib.sha256()
    with atomic_files.mapped_os_errors(path), open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


def _measured(pin: Pin, opener: OpenerDirector) -> Pin:
    parts = urlsplit(pin.url)
    if parts.scheme == "file":
        path = Path(urllib.request.url2pathname(parts.path))
        size_bytes = path.stat().st_size if path.is_file() else None
        sha256 = pin.sha256 or (digest_of(path) if path.is_file() else "")
        return msgspec.structs.replace(pin, size_bytes=size_bytes, sha256=sha256)
    if pin.size_bytes is not None:
        return pin
    request = urllib.request.Request(
        without_password(pin.url), method="HEAD", headers={"User-Agent": "flatout"}
    )
    try:
        with opener.open(request, timeout=_REQUEST_TIMEOUT_S) as response:
            length = response.headers.get("Content-Length", "")
    except (OSError, ValueError, http.client.HTTPException):
        return pin  # Only its size stays unknown; the download shows whether it is available.
    return msgspec.structs.replace(pin, size_bytes=int(length)) if length.isdigit() else pin
