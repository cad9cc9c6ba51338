"""The run's event log: lines appended to the run's folder, read by all other processes."""

from __future__ import annotations

from pathlib import Path

from flatout.engine.runlog.history import History, read_history
from flatout.engine.runlog.progress_echo import Echo
from flatout.errors import FlatoutError
from flatout.schema.finding import Finding, finding_from
from flatout.schema.run_lines import Event, Failed, Metric, Warned
from flatout.system import atomic_files
from flatout.system.clock import now_s
from flatout.system.store.run_folder import RunFolder


class EventLog:
    """Appends to events.jsonl and metrics.jsonl.

    Args:
        folder: the run's folder, whose lock the caller holds.
        echo: shows lines as they come, for notebooks.
    """

    def __init__(self, folder: RunFolder, echo: Echo | None = None) -> None:
        self._echo = echo
        self._folder = folder
        self._events = atomic_files.Lines(folder.events)
        self._history: History | None = None
        self._metrics = atomic_files.Lines(folder.metrics)

    def event(self, line: Event, *, is_synced: bool = False) -> None:
        """Adds to the run's history; with is_synced it is on the disk when this returns."""
        self._events.append(line, is_synced=is_synced)
        if self._history is not None:
            self._history = self._history.after(line)
        if self._echo is not None:
            self._echo.take(line)

    @property
    def history(self) -> History:
        """The decisions of the run so far; the disk is read only the first time."""
        if self._history is None:
            self._history = read_history(self._folder)
        return self._history

    def metric(self, line: Metric) -> None:
        """Adds a metric."""
        self._metrics.append(line)
        if self._echo is not None:
            self._echo.take(line)

    def warn(self, step: int, finding: Finding) -> None:
        """Logs a finding."""
        self.event(Warned(at=now_s(), step=step, finding=finding))

    def warn_of(self, step: int, error: FlatoutError) -> None:
        """Logs an error that does not end the run."""
        self.warn(step, finding_from(error, "warning"))

    def cut_metrics(self, size_bytes: int) -> None:
        """Cuts metrics.jsonl back to a checkpoint: what came later is computed again."""
        atomic_files.cut_back(self._folder.metrics, size_bytes)

    def metrics_bytes(self) -> int:
        """Size of metrics.jsonl now, for a checkpoint to come back to."""
        return self._metrics.size_bytes()

    def keep_samples(self, step: int, epoch: int, indices: list[int]) -> Path:
        """Keeps which samples a step that went wrong was made of; gives the file."""
        path = self._folder.path / "nonfinite.json"
        atomic_files.write_json(path, {"step": step, "epoch": epoch, "indices": indices})
        return path

    def close(self) -> None:
        """Syncs and closes both files."""
        self._metrics.close()
        self._events.close()


def append_refusal(folder: RunFolder, error: FlatoutError) -> None:
    """Logs in a run's history why training did not start, unless another process writes there."""
    lock = folder.lock()
    if not lock.acquire():
        return
    try:
        events = atomic_files.Lines(folder.events)
        finding = finding_from(error)
        events.append(Failed(at=now_s(), step=0, finding=finding), is_synced=True)
        events.close()
    finally:
        lock.release()


class SilentEventLog(EventLog):
    """Stands in for an EventLog on a rank that writes nothing: rank 0 writes for all."""

    def __init__(self) -> None:
        pass

    def event(self, line: Event, *, is_synced: bool = False) -> None:
        """See EventLog."""

    def metric(self, line: Metric) -> None:
        """See EventLog."""

    def cut_metrics(self, size_bytes: int) -> None:
        """See EventLog."""

    def metrics_bytes(self) -> int:
        """See EventLog."""
        return 0

    def close(self) -> None:
        """See EventLog."""
