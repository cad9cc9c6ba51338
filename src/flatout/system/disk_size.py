"""Disk usage of files and folders."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path


def size_of(path: Path, seen: set[tuple[int, int]], left_out: str | None = None) -> int:
    """The disk usage of a file or folder.

    Args:
        path: of the file or folder; one that is missing takes nothing.
        seen: device and number of the linked files that were counted, and are not again.
        left_out: a name in that folder that does not count.
    """
    num_bytes = 0
    for entry in _entries(path, left_out):
        if entry.st_nlink > 1 and stat.S_ISREG(entry.st_mode):
            known = (entry.st_dev, entry.st_ino)
            if known in seen:
                continue
            seen.add(known)
        # A file with holes, and one in blocks, takes another size than its length.
        num_bytes += getattr(entry, "st_blocks", 0) * 512 or entry.st_size
    return num_bytes


def _entries(path: Path, left_out: str | None) -> Iterator[os.stat_result]:
    """The file, or everything below the folder; what vanishes in the meantime is left out."""
    try:
        status = path.lstat()
    except OSError:
        return
    yield status
    if not stat.S_ISDIR(status.st_mode):
        return
    waiting = [str(path)]
    unwanted = os.path.join(path, left_out) if left_out else None
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.path == unwanted:
                        continue
                    # Under Windows the directory entry has no link count; lstat has.
                    is_windows = sys.platform == "win32"
                    yield os.lstat(entry.path) if is_windows else entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
