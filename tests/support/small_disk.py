"""A small disk in memory, which a test can fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def can_be_mounted() -> bool:
    """Whether this process can mount one: only root on Linux can."""
    return sys.platform == "linux" and os.geteuid() == 0


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size such as "24m", in a new folder."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path: Path) -> None:
    """Fills a file until the disk is full."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        for size in (2**16, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)
