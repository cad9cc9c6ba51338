"""The last learning-rate range test of each experiment: its result, and a picture of it."""

from __future__ import annotations

import re
from pathlib import Path

from flatout.schema.lr_range import LrRange
from flatout.system import atomic_files
from flatout.system.paths import state_path


def keep_lr_range(result: LrRange) -> Path:
    """Writes a result in place of the experiment's last one; gives the file.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", result.name).strip("-._")[:80] or "experiment"
    path = state_path("lr") / f"{stem}.json"
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A picture of the last one; without matplotlib there is no other.
        path.with_suffix(".png").unlink(missing_ok=True)
    atomic_files.write_json(path, result)
    return path
