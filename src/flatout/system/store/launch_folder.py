"""Logs of scripts that `flatout launch` runs on several nodes: a folder each.

node0.log   what a node printed
.lock       held while nodes run
"""

from __future__ import annotations

from pathlib import Path

from flatout.system.atomic_files import FileLock
from flatout.system.paths import state_path


def launches_folder() -> Path:
    """Folder that holds one folder per launch, unless `--logs` names another."""
    return state_path("launches")


def launch_lock(folder: Path) -> FileLock:
    """Held while nodes of a launch run. A folder that the user has named may be that of two."""
    return FileLock(folder / ".lock")
