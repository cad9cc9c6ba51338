"""Sends a run to a tracker: `flatout.runs.tracking RUN_DIR`, with a TrackerJob on its stdin.

A process of its own (`system/tracker_process.py`), started with the training and not waited for.
It reads the run's files, sends what is new, and keeps how far it has come next to them. A run that
goes back to a checkpoint computes steps again, whose values are the same: of each value, steps up
to the last one sent are left out then. So each arrives once, and at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import FlatoutError
from flatout.monitor import plots
from flatout.monitor.tracker import Arrived, TrackedRow, TrackedRun, Tracker, rows_of
from flatout.runs.listing import known_parameters
from flatout.schema.machine_sample import MachineSample
from flatout.schema.run import Run
from flatout.schema.run_lines import Event, Metric, Started
from flatout.schema.tracking import TrackerJob, TrackerPosition, TrackerTarget
from flatout.schema.units import seconds_text
from flatout.system import clock
from flatout.system.atomic_files import read_lines_from, write_atomically
from flatout.system.store.environments import LOCK_FILE
from flatout.system.store.run_folder import RunFolder, read_run
from flatout.system.store.run_reader import each_metric, results_of
from flatout.system.store.tracker_files import TrackerFiles, lines_after, not_received
from flatout.system.tracker_process import yield_to_others

_EVERY_S = 5.0
_LONGEST_PAUSE_S = 60.0
# A training in a notebook takes the run's lock only after this process was started.
_GRACE_S = 3.0
_LOOK_EVERY_S = 1.0
_BATCH_LINES = 200
_LONGEST_REASON = 300
# After the run: how long to try again, and how long a single request may take without an answer.
_RETRY_S = 20.0
_ANSWER_S = 60.0
# Of the files at the end: less is a server that hangs.
_LEAST_BYTES_PER_S = 250_000.0


class Sending:
    """One run on its way to one tracker, which is opened again after a failure.

    open_tracker: makes the adapter. alive_at_s: when something has arrived last. bytes_on_way: of
    the files that are being sent.
    """

    def __init__(
        self, folder: RunFolder, target: TrackerTarget, open_tracker: Callable[[], Tracker]
    ) -> None:
        self.folder = folder
        self.files = TrackerFiles(folder, target)
        self.alive_at_s = clock.elapsed_s()
        self.bytes_on_way = 0
        self._target = target
        self._open_tracker = open_tracker
        self._tracker: Tracker | None = None
        # On the disk, and as far as was read: they differ where nothing is confirmed yet.
        self._kept = self._position = self.files.read()
        # Name -> the last step that must not be sent again, since the run has gone back.
        self._before: dict[str, int] = {}
        # Name -> what has arrived of it, looked up where that is in doubt.
        self._arrived: dict[str, Arrived] = {}
        self._is_in_doubt = False
        # Of the line that was read last.
        self._step = 0

    def send(self, *, is_over: bool) -> None:
        """Sends what is new. is_over: no line will follow."""
        tracker = self._tracker or self._open()
        while self._send_batch(tracker, is_over=is_over):
            self.alive_at_s = clock.elapsed_s()

    def end(self) -> None:
        """Sends the files of a run that has ended, and its status. It may be resumed later."""
        run = read_run(self.folder)
        if self._tracker is not None:
            files = _files_of(run, self.folder, self.files.folder)
            sizes = [path.stat().st_size for paths in files.values() for path in paths]
            self.bytes_on_way = sum(sizes)
            self._tracker.end(run.status, _ended_at(run), files)
            self._tracker = None
            self._kept = self._position
        self._keep(
            msgspec.structs.replace(self._kept, is_sending=False, is_done=True, finding=None)
        )

    def fail(self, because: str, *, is_done: bool) -> None:
        """Keeps why something has not arrived; the next `send` begins again after what has."""
        self.note(because, is_done=is_done)
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None

    def note(self, because: str, *, is_done: bool) -> None:
        """Keeps why something has not arrived."""
        finding = not_received(self.folder, self._target, because)
        with contextlib.suppress(OSError, FlatoutError):
            self._keep(msgspec.structs.replace(self._kept, finding=finding, is_done=is_done))

    def _open(self) -> Tracker:
        tracker = self._open_tracker()
        self._tracker = tracker
        kept = self._kept
        # Without a position, as where its file was removed, all of it may have arrived.
        self._is_in_doubt = kept.is_sending or not (kept.metrics_bytes or kept.samples_bytes)
        if tracker.open(_tracked(read_run(self.folder), self.files.folder)):
            kept = TrackerPosition(target=kept.target)
            self._is_in_doubt = False
        self._before, self._arrived = {}, {}
        self._step = max(kept.steps.values(), default=0)
        self._position = msgspec.structs.replace(
            kept, url=tracker.url, finding=None, is_sending=True, is_done=False
        )
        self._keep(self._position)
        self.alive_at_s = clock.elapsed_s()
        return tracker

    def _send_batch(self, tracker: Tracker, *, is_over: bool) -> bool:
        """Sends the next lines, with the samples of their time; False if there are none."""
        before = self._position
        fresh = islice(lines_after(self.folder.metrics, before.metrics_bytes, Metric), _BATCH_LINES)
        lines, metrics_bytes = _taken(fresh, before.metrics_bytes)
        # After the lines: where the run has gone back, they may be of the file as it is now.
        if self._has_gone_back():
            return True
        is_last = is_over and metrics_bytes == before.metrics_bytes
        until = float("inf") if is_last else max((line.at for line in lines), default=0.0)
        found = lines_after(self.folder.samples, before.samples_bytes, MachineSample)
        samples, samples_bytes = _taken(
            takewhile(lambda sample: sample[0].at <= until, found), before.samples_bytes
        )
        if metrics_bytes == before.metrics_bytes and samples_bytes == before.samples_bytes:
            return False
        rows = list(rows_of(lines, samples, self._step, self.folder.pictures))
        lacking = []
        for row in rows:
            values = {name: value for name, value in row.values.items() if self._lacks(name, row)}
            if values:
                lacking.append(msgspec.structs.replace(row, values=values))
        if lacking:
            tracker.send(lacking)
        for row in rows:
            if not row.is_sample:
                self._raise_steps(dict.fromkeys(row.values, row.step))
        self._step = lines[-1].step if lines else self._step
        self._position = msgspec.structs.replace(
            self._position, metrics_bytes=metrics_bytes, samples_bytes=samples_bytes
        )
        if tracker.is_confirmed:
            self._keep(self._position)
        return True

    def _has_gone_back(self) -> bool:
        """Whether the run has begun, or gone back to a checkpoint, since the last call; its metrics
        are then read from their beginning.
        """
        before = self._position
        events, events_bytes = read_lines_from(self.folder.events, before.events_bytes, Event)
        if not any(isinstance(line, Started) for line in events):
            self._position = msgspec.structs.replace(before, events_bytes=events_bytes)
            return False
        self._before, self._step = before.steps, 0
        self._position = msgspec.structs.replace(before, events_bytes=events_bytes, metrics_bytes=0)
        return True

    def _lacks(self, name: str, row: TrackedRow) -> bool:
        if self._is_in_doubt and name not in self._arrived:
            assert self._tracker is not None
            self._arrived[name] = found = self._tracker.last(name)
            if not row.is_sample:
                self._raise_steps({name: found.step})
        arrived = self._arrived.get(name, Arrived())
        if row.is_sample:
            return row.at_ms > arrived.at_ms
        return row.step > max(arrived.step, self._before.get(name, -1))

    def _raise_steps(self, reached: dict[str, int]) -> None:
        steps = self._position.steps
        higher = {name: max(step, steps.get(name, -1)) for name, step in reached.items()}
        self._position = msgspec.structs.replace(self._position, steps=steps | higher)

    def _keep(self, position: TrackerPosition) -> None:
        self._kept = position
        self.files.write(position)


def _taken(lines: Iterable[tuple[Any, int]], offset: int) -> tuple[list[Any], int]:
    """Lines, and the offset behind the last of them."""
    taken = []
    for line, end in lines:
        taken.append(line)
        offset = end
    return taken, offset


def follow(sending: Sending, *, is_following: bool, events_bytes: int = 0) -> None:
    """Sends a run for as long as it is trained, and some time longer if the tracker is away.

    events_bytes: see `TrackerJob`.
    """
    over, ended = threading.Event(), threading.Event()
    threading.Thread(target=_watch, args=(sending, over, ended), daemon=True).start()
    try:
        _follow(sending, over, is_following=is_following, events_bytes=events_bytes)
    finally:
        ended.set()


def _follow(
    sending: Sending, over: threading.Event, *, is_following: bool, events_bytes: int
) -> None:  # fmt: skip
    folder = sending.folder
    has_begun = False
    began_s = over_s = clock.elapsed_s()
    pause_s = _EVERY_S
    while True:
        try:
            is_used = is_following and (
                folder.is_in_use() or clock.elapsed_s() < began_s + _GRACE_S
            )
            if is_used:
                over.clear()
            elif not over.is_set():
                over_s = clock.elapsed_s()
                over.set()
            has_begun = has_begun or over.is_set() or _has_begun(folder, events_bytes)
            # A run that has logged nothing yet may still be refused.
            if has_begun and folder.metrics.is_file() and folder.metrics.stat().st_size:
                sending.send(is_over=over.is_set())
            if over.is_set():
                sending.end()
                return
            pause_s = _EVERY_S
        # An adapter may raise anything; what it lacks is in the run's files, and tried again.
        except Exception as error:  # noqa: BLE001
            if not folder.header.exists():
                return  # The run was removed.
            is_last = isinstance(error, ImportError) or not is_following
            is_last |= over.is_set() and clock.elapsed_s() > over_s + _RETRY_S
            sending.fail(_reason(error), is_done=is_last)
            if is_last:
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        _wait(folder, _EVERY_S if over.is_set() else pause_s)


def _has_begun(folder: RunFolder, events_bytes: int) -> bool:
    lines, _ = read_lines_from(folder.events, events_bytes, Event)
    return any(isinstance(line, Started) for line in lines)


def _wait(folder: RunFolder, pause_s: float) -> None:
    """Waits that long, or until the run is over."""
    until_s = clock.elapsed_s() + pause_s
    was_used = True
    while clock.elapsed_s() < until_s and was_used:
        clock.sleep_s(_LOOK_EVERY_S)
        with contextlib.suppress(OSError, FlatoutError):
            was_used = folder.is_in_use()


def _watch(sending: Sending, over: threading.Event, ended: threading.Event) -> None:
    """Ends this process where a tracker does not answer although the run is over."""
    since_s = clock.elapsed_s()
    while not ended.wait(_LOOK_EVERY_S):
        if not over.is_set():
            since_s = clock.elapsed_s()
        limit_s = _ANSWER_S + sending.bytes_on_way / _LEAST_BYTES_PER_S
        if clock.elapsed_s() > max(since_s, sending.alive_at_s) + limit_s:
            sending.note(f"it has not answered within {seconds_text(limit_s)}", is_done=True)
            os._exit(1)


def _reason(error: Exception) -> str:
    """The first line of an error: a server may answer with a page."""
    if isinstance(error, FlatoutError):
        return f"{error.problem} {error.because or ''}".strip()
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:_LONGEST_REASON]}".rstrip(": ")


def _tracked(run: Run, folder: Path) -> TrackedRun:
    fields = msgspec.structs.asdict(run.recipe) if run.recipe else {}
    return TrackedRun(
        id=run.id,
        key=f"{run.id} {run.header.created_at!r}",
        experiment=run.header.spec.name,
        created_at=run.header.created_at,
        parameters={"seed": run.header.spec.seed, **known_parameters(run)},
        recipe={name: choice.value for name, choice in fields.items()},
        folder=folder,
    )


def _ended_at(run: Run) -> float:
    ending = {"finished": run.finished, "stopped": run.stopped}.get(run.status)
    return ending.at if ending is not None else clock.now_s()


def _files_of(run: Run, folder: RunFolder, own: Path) -> dict[str, tuple[Path, ...]]:
    """What is sent at the end: weights, generated texts, versions, plots."""
    files = [folder.weights] if folder.weights.is_file() else []
    samples = results_of(run).samples
    if samples is not None:
        files.append(own / "generated.txt")
        write_atomically(files[-1], "\n\n".join(samples.texts).encode())
    lock = Path(run.header.python).parent.parent / LOCK_FILE
    if not lock.is_file():
        lock = own / "versions.txt"
        versions = run.started.versions if run.started else {}
        named = {"flatout": run.header.flatout_version, **versions}
        text = "".join(f"{name} {version}\n" for name, version in named.items())
        write_atomically(lock, text.encode())
    files.append(lock)
    drawn: list[Path] = []
    if plots.can_draw() and run.step > 0:
        # What can be drawn of it is no reason not to send the rest.
        with contextlib.suppress(FlatoutError):
            drawn = plots.draw(run, each_metric(run), results_of(run))
    return {"": tuple(files), "plots": tuple(drawn)}


def _tracker_for(target: TrackerTarget) -> Tracker:
    if target.kind == "mlflow":
        from flatout.monitor.mlflow_tracker import MlflowTracker

        return MlflowTracker(target.where or "")
    from flatout.monitor.wandb_tracker import WandbTracker

    return WandbTracker(target.where)


def main(path: Path) -> None:
    """Sends the run in that folder as the job on stdin says."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=TrackerJob)
    folder = RunFolder(path)
    lock = TrackerFiles(folder, job.target).lock
    # The process of the session before may still be sending.
    while not lock.acquire():
        clock.sleep_s(_LOOK_EVERY_S)
    # Only now: a lock that is free says that this process was killed.
    yield_to_others()
    sending = Sending(folder, job.target, lambda: _tracker_for(job.target))
    follow(sending, is_following=job.is_following, events_bytes=job.events_bytes)
    # Not by way of threads that a package has left.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
