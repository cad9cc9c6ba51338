"""Sweeps by their names, and how much each parameter matters."""

from __future__ import annotations

import threading
from pathlib import Path

from flatout.errors import UsageError
from flatout.runs.sweep import result
from flatout.schema.sweep import Sweep, SweepTrial
from flatout.system.store.sweep_folder import SweepFolder, sweep_paths

# Of a sweep: when it was created, and the trials that had finished.
_Known = tuple[float, list[SweepTrial]]


class SweepCache:
    """For threads that ask at the same time.

    Optuna computes importances; they are kept until another trial has finished.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._importances: dict[str, tuple[_Known, dict[str, float]]] = {}

    def paths(self) -> list[Path]:
        """Folders of all sweeps, the one that was written to last first."""
        return sweep_paths()[::-1]

    def has(self, name: str) -> bool:
        """Whether there is a sweep of that name."""
        return any(path.name == name for path in sweep_paths())

    def find(self, name: str) -> SweepFolder:
        """A sweep by its name, which is looked up; it is never part of a path.

        Raises:
            UsageError: unknown-sweep.
        """
        for path in sweep_paths():
            if path.name == name:
                return SweepFolder(path)
        raise UsageError(
            "unknown-sweep", f"there is no sweep `{name}`.", fix="list sweeps: /sweeps"
        )

    def importances(self, sweep: Sweep) -> dict[str, float]:
        """The share of each parameter; empty if too few trials have finished.

        Raises:
            UsageError: optuna-not-installed; RunFailed: sweep-damaged.
        """
        finished = [one for one in sweep.trials if one.status == "finished"]
        known = (sweep.header.created_at, finished)
        with self._lock:
            kept = self._importances.get(sweep.folder)
            if kept is None or kept[0] != known:
                kept = (known, result.importances_of(sweep))
                self._importances[sweep.folder] = kept
        return kept[1]
