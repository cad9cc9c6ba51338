"""A training that failed before its first update: no run is left of it, only what it told.

Its folder is kept outside of the runs until the next start fails, for `flatout explain`, and for
whoever wants to read its log.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError
from flatout.nouns.run import Run
from flatout.system.folders import state_folder
from flatout.system.runs import RunFolder, read_run
from flatout.system.store import mapped_os_errors


def failed_start_folder() -> Path:
    """Where the last start that failed is kept."""
    return state_folder() / "failed-start"


def last_failed_start() -> Run | None:
    """The last training that failed before its first update; None where none is kept."""
    folder = failed_start_folder()
    if not (folder / "run.json").is_file():
        return None
    try:
        return read_run(RunFolder(folder))
    except FlatoutError:
        return None


def is_failed_start(run: Run, rule: str) -> bool:
    """Whether a new run has computed nothing that could be gone on with, or looked at.

    Where flatout itself has failed, the run is kept for whoever looks into it.

    Args:
        run: as it ended.
        rule: of the bad news that it ended with.
    """
    # What was saved before the first update holds nothing that another start would not make.
    has_computed = bool(run.step or run.checkpoint_step or run.validations)
    return not has_computed and rule != "internal-error"


def set_aside(run: Run) -> Run:
    """Takes a run's folder out of the runs; the run as it lies then, or as it was where it cannot.

    Somebody may still have a file of it open, which keeps it where it is under Windows.
    """
    folder, kept = RunFolder(Path(run.folder)), failed_start_folder()
    lock = folder.lock()
    if not lock.acquire():
        return run
    # Windows cannot rename a folder in which a file is open, not even the lock.
    lock.release()
    old = kept.with_name(f".{kept.name}-{os.getpid()}")
    try:
        with mapped_os_errors(folder.path):
            if kept.exists():
                kept.rename(old)
                shutil.rmtree(old, ignore_errors=True)
            folder.path.rename(kept)
    except FlatoutError:
        return run
    return msgspec.structs.replace(run, folder=str(kept))
