"""What the engine tells: lines appended to the run's folder, read by everybody else."""

from __future__ import annotations

from pathlib import Path

from flatout.engine.echo import Echo
from flatout.errors import FlatoutError
from flatout.nouns.finding import Finding, Severity, finding_from
from flatout.nouns.lines import Event, Failed, Metric, Warned
from flatout.system import store
from flatout.system.clock import now_s
from flatout.system.runs import RunFolder


class Journal:
    """Appends to events.jsonl and metrics.jsonl.

    Args:
        folder: the run's folder, whose lock the caller holds.
        echo: tells what comes as it comes: in a notebook nobody reads the files.
    """

    def __init__(self, folder: RunFolder, echo: Echo | None = None) -> None:
        self._echo = echo
        self._folder = folder
        self._events = store.Lines(folder.events)
        self._metrics = store.Lines(folder.metrics)

    def event(self, line: Event, *, is_synced: bool = False) -> None:
        """Adds to the run's history; with is_synced it is on the disk when this returns."""
        self._events.append(line, is_synced=is_synced)
        if self._echo is not None:
            self._echo.take(line)

    def metric(self, line: Metric) -> None:
        """Adds a metric."""
        self._metrics.append(line)
        if self._echo is not None:
            self._echo.take(line)

    def warn(self, step: int, finding: Finding) -> None:
        """Tells something worth knowing."""
        self.event(Warned(at=now_s(), step=step, finding=finding))

    def warn_of(self, step: int, error: FlatoutError, severity: Severity = "warning") -> None:
        """Tells bad news that does not end the run."""
        self.warn(step, finding_from(error, severity))

    def cut_metrics(self, size_bytes: int) -> None:
        """Cuts metrics.jsonl back to a checkpoint: what came later is computed again."""
        store.cut_back(self._folder.metrics, size_bytes)

    def metrics_bytes(self) -> int:
        """Size of metrics.jsonl now, for a checkpoint to come back to."""
        return self._metrics.size_bytes()

    def keep_samples(self, step: int, epoch: int, indices: list[int]) -> Path:
        """Keeps which samples a step that went wrong was made of; gives the file."""
        path = self._folder.path / "nonfinite.json"
        store.write_json(path, {"step": step, "epoch": epoch, "indices": indices})
        return path

    def close(self) -> None:
        """Syncs and closes both files."""
        self._metrics.close()
        self._events.close()


def tell_refusal(folder: RunFolder, error: FlatoutError) -> None:
    """Tells in a run's history why nobody began to train, unless somebody else writes there."""
    lock = folder.lock()
    if not lock.acquire():
        return
    try:
        events = store.Lines(folder.events)
        finding = finding_from(error)
        events.append(Failed(at=now_s(), step=0, finding=finding), is_synced=True)
        events.close()
    finally:
        lock.release()


class SilentJournal(Journal):
    """The journal of a rank that writes nothing: the run's folder has one writer, the first."""

    def __init__(self) -> None:
        pass

    def event(self, line: Event, *, is_synced: bool = False) -> None:
        """See Journal."""

    def metric(self, line: Metric) -> None:
        """See Journal."""

    def cut_metrics(self, size_bytes: int) -> None:
        """See Journal."""

    def metrics_bytes(self) -> int:
        """See Journal."""
        return 0

    def close(self) -> None:
        """See Journal."""
