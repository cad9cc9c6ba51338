"""Whether there is room for what is about to be downloaded."""

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
        Problem: there is not enough of it.
    """
    free_bytes = shutil.disk_usage(ROOT).free
    say(
        "download",
        f"at most about {bytes_text(download_bytes)}; {bytes_text(disk_bytes)} of disk, "
        f"{bytes_text(free_bytes)} are free",
    )
    needs = [(str(ROOT), disk_bytes, free_bytes)]
    # pip unpacks in the temporary folder, which is often small and on a device of its own.
    temporary = tempfile.gettempdir()
    if os.stat(temporary).st_dev != os.stat(ROOT).st_dev:
        needs.append((temporary, download_bytes, shutil.disk_usage(temporary).free))
    if short := shortages(needs):
        raise Problem(
            "there is not enough free disk space.",
            because="; ".join(short),
            fix="free some; or move this checkout, or the temporary folder (TMPDIR, under Windows "
            "TEMP), to a larger disk",
        )


def shortages(needs: Sequence[tuple[str, int, int]]) -> list[str]:
    """Of (place, bytes needed, bytes free), the places that are too full, told in words."""
    return [
        f"{place} has {bytes_text(free)} free; about {bytes_text(needed)} are needed"
        for place, needed, free in needs
        if free < needed
    ]
