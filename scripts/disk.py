"""Checks that there is enough disk space for a download."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence

from checkout import ROOT
from progress import Problem, bytes_text, say


def show_and_check(download_bytes: int, disk_bytes: int) -> None:
    """Shows the download's size and the free disk.

    Raises:
        Problem: there is not enough.
    """
    free_bytes = shutil.disk_usage(ROOT).free
    say(
        "download",
        f"at most about {bytes_text(download_bytes)}; {bytes_text(disk_bytes)} of disk space, "
        f"{bytes_text(free_bytes)} free",
    )
    needs = [(str(ROOT), disk_bytes, free_bytes)]
    # pip unpacks in the temporary folder, which is often small and on a separate device.
    temporary = tempfile.gettempdir()
    if os.stat(temporary).st_dev != os.stat(ROOT).st_dev:
        needs.append((temporary, download_bytes, shutil.disk_usage(temporary).free))
    if short := shortages(needs):
        raise Problem(
            "not enough free disk space.",
            because="; ".join(short),
            fix="free some, or move this checkout or the temporary folder (TMPDIR, under Windows "
            "TEMP), to a larger disk",
        )


def shortages(needs: Sequence[tuple[str, int, int]]) -> list[str]:
    """Describes those of (folder, bytes needed, bytes free) that are too full."""
    return [
        f"{place} has {bytes_text(free)} free, but needs about {bytes_text(needed)}"
        for place, needed, free in needs
        if free < needed
    ]
