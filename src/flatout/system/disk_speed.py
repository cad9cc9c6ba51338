"""Speed of a disk: one large file and many small ones, written and read back from the disk.

In a process of its own (`python -P -m flatout.system.disk_speed FOLDER STREAM_BYTES NUM_SMALL
REPEATS`), because a disconnected share hangs every process that touches it. What is written is a
folder that is removed again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time

from flatout.system.probes.disks import mount_of, parse_mountinfo

SMALL_BYTES = 16 * 1024
_CHUNK_BYTES = 8 * 2**20
# A slow disk gets less work, not more time.
LIMIT_S = 3.0
# And fewer repeats.
_ENOUGH_S = 12.0
# What is left free for others.
_RESERVED = 4

# File systems that have no cache but the system's, on a disk of this computer. Not 9p, virtiofs and
# network file systems (the other side has one), ZFS (one of its own) and tmpfs (nothing else).
_DROPPING = {
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "jfs", "vfat", "exfat", "ntfs3",
    "overlay",
}  # fmt: skip

Samples = dict[str, list[float]]


def measure(folder: str, stream_bytes: int, num_small: int, repeats: int) -> Samples:
    """Bytes per second of a stream, files per second of small ones: write, read, small_write and
    small_read. Without the latter half where a file cannot be dropped from the system's cache.

    Raises:
        OSError: the folder cannot be written to, or has too little room.
    """
    free = shutil.disk_usage(folder).free
    if free < _RESERVED * stream_bytes:
        raise OSError(0, f"only {free // 2**20} MiB are free")
    samples: Samples = {}
    is_read = why_kept_in_cache(folder) is None
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=".flatout-", dir=folder) as inside:
        for _ in range(repeats):
            for name, value in (
                *_stream(os.path.join(inside, "stream"), stream_bytes, is_read=is_read),
                *_small_files(inside, num_small, is_read=is_read),
            ):
                samples.setdefault(name, []).append(value)
            if time.perf_counter() - began_s > _ENOUGH_S:
                break
    return samples


def _stream(path: str, num_bytes: int, *, is_read: bool) -> list[tuple[str, float]]:
    # Random, so that a file system that compresses has nothing to gain.
    chunk = os.urandom(_CHUNK_BYTES)
    began_s = time.perf_counter()
    written = 0
    with open(path, "wb", buffering=0) as file:
        while written < num_bytes and time.perf_counter() - began_s < LIMIT_S:
            written += file.write(chunk)
        os.fsync(file.fileno())
        rates = [("write", written / (time.perf_counter() - began_s))]
    if not is_read:
        return rates
    _drop(path)
    buffer = bytearray(_CHUNK_BYTES)
    began_s = time.perf_counter()
    done = 0
    with open(path, "rb", buffering=0) as file:
        while num := file.readinto(buffer):
            done += num
            if time.perf_counter() - began_s > LIMIT_S:
                break
    return [*rates, ("read", done / (time.perf_counter() - began_s))]


def _small_files(folder: str, num_files: int, *, is_read: bool) -> list[tuple[str, float]]:
    content = os.urandom(SMALL_BYTES)
    paths = [os.path.join(folder, f"{index}") for index in range(num_files)]
    began_s = time.perf_counter()
    num_written = 0
    for path in paths:
        with open(path, "wb") as file:
            file.write(content)
        num_written += 1
        if time.perf_counter() - began_s > LIMIT_S:
            break
    rates = [("small_write", num_written / (time.perf_counter() - began_s))]
    if not is_read:
        return rates
    for path in paths[:num_written]:
        _drop(path)
    began_s = time.perf_counter()
    num_read = 0
    for path in paths[:num_written]:
        with open(path, "rb") as file:
            file.read()
        num_read += 1
        if time.perf_counter() - began_s > LIMIT_S:
            break
    return [*rates, ("small_read", num_read / (time.perf_counter() - began_s))]


def why_kept_in_cache(folder: str) -> str | None:
    """Why reads of a folder's files cannot be made to come from the disk; None if they can."""
    if sys.platform != "linux":
        return "this system does not let a program drop a file from its cache"
    with open("/proc/self/mountinfo", errors="replace") as file:
        mount = mount_of(parse_mountinfo(file.read()), os.path.realpath(folder))
    if mount is None:
        return "its file system is unknown, and may have a cache that cannot be dropped"
    if mount.kind in _DROPPING:
        return None
    return f"{mount.kind} has a cache from which a program cannot drop a file"


def _drop(path: str) -> None:
    """Leaves the file on the disk alone."""
    if sys.platform != "linux":
        return
    with open(path, "rb+") as file:
        # What has not been written yet cannot be dropped.
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:5]))))
        sys.stderr.write(why_kept_in_cache(sys.argv[1]) or "")
    except OSError as error:
        sys.exit(f"{error.strerror or error}")
