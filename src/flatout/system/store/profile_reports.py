"""The last report of `flatout profile` for each experiment and program, in the state folder."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.schema.step_profile import StepProfile
from flatout.system import atomic_files
from flatout.system.paths import state_path

_LONGEST_NAME = 100


def reports_folder() -> Path:
    """Folder of all reports."""
    return state_path("profiles")


def keep_report(report: StepProfile) -> None:
    """Keeps a report in place of the last one with its subject."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", report.subject)[:_LONGEST_NAME]
    path = reports_folder() / f"profile-{name}.json"
    # It is shown in any case: a full disk must not be in its way.
    with contextlib.suppress(FlatoutError), atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(path, report)


def kept_reports() -> dict[str, Path]:
    """Reports by id, the newest first.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    dated = []
    with atomic_files.mapped_os_errors(reports_folder()):
        for path in reports_folder().glob("profile-*.json"):
            with contextlib.suppress(FileNotFoundError):
                dated.append((path.stat().st_mtime_ns, path))
    return {path.stem.removeprefix("profile-"): path for _, path in sorted(dated, reverse=True)}


def read_report(path: Path) -> StepProfile:
    """A report, one of `kept_reports`.

    Raises:
        UsageError, RunFailed: damaged-file, and as the operating system says it.
    """
    return atomic_files.read_json(path, StepProfile)
