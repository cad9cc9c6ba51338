"""Folders that are elsewhere: symbolic links, and the junctions of Windows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Python has Path.is_junction from 3.12 on only, and the `stat` module has the number on Windows.
_JUNCTION = 0xA0000003


def is_link(path: Path) -> bool:
    """Whether a path leads elsewhere: a symbolic link, under Windows also a junction."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) or _is_junction(status)


def is_broken_link(path: Path) -> bool:
    """Whether a link is broken: to itself, to what is gone, or to a disk that does not respond."""
    if not is_link(path):
        return False
    try:
        os.stat(path)
    except PermissionError:
        return False  # There may be something.
    except OSError:
        return True
    return False


def remove_link(path: Path) -> None:
    """Removes a link alone; what it leads to stays."""
    # Windows takes a junction for a folder.
    (os.rmdir if _is_junction(os.lstat(path)) else os.unlink)(path)


def _is_junction(status: os.stat_result) -> bool:
    return getattr(status, "st_reparse_tag", 0) == _JUNCTION
