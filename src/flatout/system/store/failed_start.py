"""A training that failed before its first update: no run is left of it, only its output.

Its folder is kept outside of the runs until the next start fails, for `flatout explain`, and for
reading its log.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.run import Run
from flatout.system.atomic_files import hidden_path, mapped_os_errors
from flatout.system.paths import state_path
from flatout.system.store.run_folder import RunFolder, read_run

# What a user fixes in their file, or next to it; a run continues with the file it was started with.
_OF_THE_EXPERIMENT = ("experiment-raised", "experiment-exited", "data-not-readable")


def failed_start_folder() -> Path:
    """The folder of the last start that failed."""
    return state_path("failed-start")


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
    """Whether a new run has computed nothing, and cannot be resumed as it is.

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
    """Takes a run's folder out of the runs; the run as it is then, or as it was where it cannot.

    Someone may still have a file of it open, which keeps it where it is under Windows.
    """
    folder, target = RunFolder(Path(run.folder)), failed_start_folder()
    lock = folder.lock()
    if not lock.acquire():
        return run
    # Windows cannot rename a folder in which a file is open, not even the lock.
    lock.release()
    try:
        with mapped_os_errors(folder.path):
            hidden = hidden_path(folder.path)
            # In one step, so that no run is left wherever the rest is cut off.
            folder.path.rename(hidden)
            try:
                _move(hidden, target)
            except OSError:
                hidden.rename(folder.path)
                raise
    except FlatoutError:
        return run
    return msgspec.structs.replace(run, folder=str(target))


def _move(hidden: Path, target: Path) -> None:
    """Puts a folder in the place of another, also of another disk; where it cannot, both stay."""
    new, old = hidden_path(target), hidden_path(target.with_name(f"old-{target.name}"))
    is_copied = False
    try:
        try:
            hidden.rename(new)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            is_copied = True
            shutil.copytree(hidden, new, symlinks=True)
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    except OSError:
        if is_copied:
            shutil.rmtree(new, ignore_errors=True)
        elif new.exists():
            new.rename(hidden)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if is_copied:
        shutil.rmtree(hidden, ignore_errors=True)
