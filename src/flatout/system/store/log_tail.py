"""The end of what a run's worker has printed."""

from __future__ import annotations

import re

from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder

_TAIL_BYTES = 32 << 10
# Colors, cursor movements and titles; what is left of other control characters is not shown.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def log_names(folder: RunFolder) -> list[str]:
    """The logs of a run: that of rank 0 first."""
    with atomic_files.mapped_os_errors(folder.path):
        found = sorted(path.name for path in folder.path.glob("worker.rank*.log"))
        return [*([folder.log.name] if folder.log.exists() else []), *found]


def log_tail(folder: RunFolder, name: str) -> str:
    """The last lines of a log, without colors; a progress bar as its last state.

    Args:
        folder: the run.
        name: one of `log_names`.
    """
    path = folder.path / name
    with atomic_files.mapped_os_errors(path), atomic_files.open_file(path) as file:
        start = max(0, file.seek(0, 2) - _TAIL_BYTES)
        file.seek(start)
        text = file.read(_TAIL_BYTES).decode(errors="replace")
    lines = text.replace("\r\n", "\n").split("\n")[1 if start else 0 :]
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return _CONTROLS.sub("", _ESCAPES.sub("", "\n".join(shown)))
