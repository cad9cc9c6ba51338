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

# What a person mends in their file, or beside it; a run goes on with the file it was begun with.
_OF_THE_EXPERIMENT = ("experiment-raised", "experiment-exited", "data-not-readable")


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


def is_failed_start(run: Run, rule: str, exit_code: int) -> bool:
    """Whether a new run has computed nothing, and cannot be gone on with as it is.

    Where memory, a rank or a disk was short, it can be: such a run is kept, and so is one in which
    flatout itself has failed.

    Args:
        run: as it ended.
        rule: of the bad news that it ended with.
        exit_code: of that: 2 is what was refused.
    """
    # What was saved before the first update holds nothing that another start would not make.
    if run.header.spec.is_dry_run:
        return False
    has_computed = bool(run.step or run.checkpoint_step or run.validations)
    return not has_computed and (exit_code == 2 or rule in _OF_THE_EXPERIMENT)


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
            try:
                folder.path.rename(kept)
            except OSError:
                # Such as between two disks: the one before is not lost for that.
                if old.exists():
                    old.rename(kept)
                raise
    except FlatoutError:
        return run
    shutil.rmtree(old, ignore_errors=True)
    return msgspec.structs.replace(run, folder=str(kept))
