"""The runs that are being trained now, looked at again and again at little cost."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from flatout.bench.utilization import utilization
from flatout.errors import FlatoutError
from flatout.schema.run_lines import Event, FlopsCounted, Metric, Progress, RecipeSet, Started
from flatout.schema.top_frame import RunningRun
from flatout.system.atomic_files import read_lines_from
from flatout.system.store.jsonl_scan import last_line
from flatout.system.store.run_finder import RunFinder
from flatout.system.store.run_folder import RunFolder, read_run
from flatout.system.worker_watch import is_worker

# The pace is that of the last so many lines.
_PACE_LINES = 60


class RunningRuns:
    """All runs in the user's folder that are being trained."""

    def __init__(self) -> None:
        self._watched: dict[Path, _RunView] = {}
        self._finder = RunFinder(lambda folder: folder.lock().is_taken())

    def take(self) -> tuple[RunningRun, ...]:
        """The running runs, oldest first."""
        for folder in self._finder.take(self._watched):
            self._watched[folder.path] = _RunView(folder)
        runs = []
        for path, view in list(self._watched.items()):
            try:
                run = view.take()
            except (FlatoutError, OSError) as error:
                reason = str(error)
                if isinstance(error, FlatoutError):
                    reason = error.because or error.problem
                run = RunningRun(id=path.name, folder=str(path), unread={"step": reason})
            if run is None:
                del self._watched[path]
            else:
                runs.append(run)
        return tuple(runs)


def _is_running(folder: RunFolder) -> bool:
    try:
        return folder.lock().is_taken()
    except (FlatoutError, OSError):
        return False


class _RunView:
    """One run: of its files only what is new is read."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._events_at = 0
        self._metrics_bytes = -1
        self._started: Started | None = None
        # Of its worker; None where it is not on this machine.
        self._pid: int | None = None
        self._device: str | None = None
        self._progress: Progress | None = None
        self._pace: deque[tuple[float, int]] = deque(maxlen=_PACE_LINES)
        # Of the limit, by a rate of 1 sample/s.
        self._share: float | None = None
        self._why_no_share = "too few steps: FLOPs are counted after some seconds"

    def take(self) -> RunningRun | None:
        """The run now; None once it is over."""
        if not _is_running(self._folder):
            return None
        self._read_events()
        self._read_metrics()
        line, started = self._progress, self._started
        rate = line.samples_per_s if line is not None else None
        left_s = self._left_s()
        unread: dict[str, str] = {}
        if started is not None and self._pid is None:
            unread["pid"] = "its process is not visible here: it is on another machine, or hidden"
        if line is None:
            unread |= dict.fromkeys(("samples_per_s", "loss"), "it has not reported any step yet")
        elif line.loss is None:
            unread["loss"] = "its last line has none"
        if self._share is None or rate is None:
            unread["share"] = self._why_no_share
        if left_s is None:
            is_endless = started is not None and not started.num_steps
            unread["left_s"] = "its length is not known" if is_endless else "its pace is not known"
        return RunningRun(
            id=self._folder.path.name,
            folder=str(self._folder.path),
            pid=self._pid,
            device=self._device,
            step=max(line.step if line else 0, started.step if started else 0),
            num_steps=started.num_steps if started else None,
            samples_per_s=rate,
            unit=started.unit if started else "samples",
            loss=line.loss if line else None,
            share=self._share * rate if self._share is not None and rate is not None else None,
            left_s=left_s,
            memory_bytes=line.memory_bytes if line else None,
            unread=unread,
        )

    def _read_events(self) -> None:
        lines, self._events_at = read_lines_from(self._folder.events, self._events_at, Event)
        for line in lines:
            if isinstance(line, Started):
                self._started = line
                is_here = is_worker(line.pid, line.at, self._folder.path)
                self._pid = line.pid if is_here else None
                self._pace.clear()
                self._progress = None
            elif isinstance(line, RecipeSet):
                self._device = line.recipe.device.value
        if any(isinstance(line, Started | RecipeSet | FlopsCounted) for line in lines):
            self._read_limit()

    def _read_limit(self) -> None:
        run = read_run(self._folder)
        used = utilization(run, 1.0)
        self._share = used.share if used is not None else None
        if run.flops is not None and run.flops.flops_per_sample is None:
            self._why_no_share = run.flops.reason or "its FLOPs could not be counted"
        elif used is not None:
            self._why_no_share = (
                "this machine's limit is not known; measure it: flatout bench limits"
            )

    def _read_metrics(self) -> None:
        try:
            num_bytes = self._folder.metrics.stat().st_size
        except OSError:
            return
        if num_bytes == self._metrics_bytes:
            return
        self._metrics_bytes = num_bytes
        line = last_line(self._folder.metrics, Metric, b'"progress"')
        # What was written before a resume says nothing about the pace now.
        if isinstance(line, Progress) and (not self._started or line.at >= self._started.at):
            self._progress = line
            if self._pace and line.step < self._pace[-1][1]:
                self._pace.clear()
            self._pace.append((line.at, line.step))

    def _left_s(self) -> float | None:
        """Seconds to the end by the pace of the last lines, else by the rate of the last one."""
        started, line = self._started, self._progress
        if started is None or not started.num_steps or line is None:
            return None
        num_left = max(0, started.num_steps - line.step)
        if len(self._pace) > 1:
            (begin_s, begin_step), (end_s, end_step) = self._pace[0], self._pace[-1]
            if end_s > begin_s and end_step > begin_step:
                return num_left * (end_s - begin_s) / (end_step - begin_step)
        if not (line.samples_per_s and started.num_samples and started.steps_per_epoch):
            return None
        return num_left * started.num_samples / started.steps_per_epoch / line.samples_per_s
