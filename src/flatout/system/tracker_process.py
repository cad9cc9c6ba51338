"""The processes that send a run to trackers: of their own, so that no training waits for a server.

They run at the lowest priority, read the run's folder, and end some time after the run does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.tracking import TrackerJob, TrackerTarget, parse_tracker, parse_trackers
from flatout.system.kill_tree import kill_tree
from flatout.system.optional_packages import require_packages
from flatout.system.process_env import creation_flags
from flatout.system.site_policy import read_site
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.tracker_files import TrackerFiles, not_received, positions

# Limits of the trackers' own packages: what does not answer is tried again, from the run's files.
# What the user has set wins.
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    # Without it a folder of files is refused from MLflow 3.13 on.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    # Nothing but the tracker is contacted.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_INIT_TIMEOUT": "30",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    # The run has samples of the machine; these would be of the process that sends.
    "WANDB_X_DISABLE_STATS": "true",
    "WANDB_X_SAVE_REQUIREMENTS": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    # It computes nothing: threads of NumPy would only disturb.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_DATABASE = "mlflow.db"
_LOOK_EVERY_S = 0.2


def requested_trackers(texts: Sequence[str], folder: RunFolder | None) -> list[TrackerTarget]:
    """The trackers of a training.

    texts: as typed; none of them leaves it to the site file, or to a run that is resumed.
    folder: of a run that is resumed, which continues where it was sent before.

    Raises:
        UsageError: bad-tracker, tracker-not-installed, site-file-wrong.
    """
    typed = [resolved(target) for target in parse_trackers(texts)]
    for target in typed:
        _require_package(target)
    before: list[TrackerTarget] = []
    if folder is None and not texts:
        before = [resolved(target) for target in parse_trackers(read_site().train.track)]
    elif folder is not None and (typed or not texts):
        before = [position.target for position in positions(folder)]
    return list({target.key: target for target in [*before, *typed]}.values())


def requested_tracker(text: str) -> TrackerTarget:
    """A tracker that a run is sent to afterwards.

    Raises:
        UsageError: bad-tracker, tracker-not-installed.
    """
    target = resolved(parse_tracker(text))
    _require_package(target)
    return target


def kept_trackers(texts: Sequence[str]) -> tuple[str, ...]:
    """Trackers as the options of a sweep: the same wherever, and in which shell, it is resumed.

    A place that the environment sets stays there if it has a password.

    Raises:
        UsageError: bad-tracker.
    """
    targets = [(target, resolved(target)) for target in parse_trackers(texts)]
    kept = tuple(str(found if found == found.kept else target) for target, found in targets)
    return kept or tuple(texts)


def resolved(target: TrackerTarget) -> TrackerTarget:
    """A tracker with the place that the environment sets; of a path with the whole path."""
    where = target.where
    if target.kind == "wandb":
        if where is None and os.environ.get("WANDB_MODE") == "offline":
            where = "offline"
    elif where is None:
        database = (Path.cwd() / _DATABASE).as_posix()
        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database}"
    if target.kind == "mlflow" and where and "://" not in where and where != "databricks":
        where = Path(where).expanduser().absolute().as_uri()
    return TrackerTarget(kind=target.kind, where=where)


def typed_tracker(target: TrackerTarget) -> str:
    """A tracker as `--track` takes it, without a place where it has none but the usual."""
    usual = TrackerTarget(kind=target.kind)
    return str(usual if resolved(usual).key == target.key else target)


def _require_package(target: TrackerTarget) -> None:
    what = f"`--track {target}`"
    require_packages("tracker-not-installed", what, [target.kind], extra=target.kind)


def num_event_bytes(folder: RunFolder) -> int:
    """The size of events.jsonl, to be read before a training starts: see `TrackerJob`."""
    try:
        return folder.events.stat().st_size
    except OSError:
        return 0


def start_trackers(
    folder: RunFolder, targets: Iterable[TrackerTarget], events_bytes: int
) -> None:  # fmt: skip
    """Starts a process for each tracker; the training continues whatever becomes of them.

    events_bytes: see `TrackerJob`.
    """
    for target in targets:
        files = TrackerFiles(folder, target)
        position = msgspec.structs.replace(files.read(), is_done=False, finding=None)
        try:
            files.write(position)
            _start(folder, TrackerJob(target=target, events_bytes=events_bytes))
        except (OSError, FlatoutError) as error:
            finding = not_received(folder, target, f"its process did not start: {error}")
            # On a full disk, the run itself reports it.
            with contextlib.suppress(OSError, FlatoutError):
                files.write(msgspec.structs.replace(position, is_done=True, finding=finding))


def run_tracker(folder: RunFolder, job: TrackerJob) -> None:
    """Starts the process that sends a run to a tracker, and waits for its end.

    Raises:
        OSError: it cannot be started.
    """
    process = _start(folder, job)
    try:
        # Ctrl-C does not end a longer wait on Windows.
        while process.poll() is None:
            time.sleep(_LOOK_EVERY_S)
    except BaseException:
        kill_tree(process.pid)
        process.wait()
        raise


def _start(folder: RunFolder, job: TrackerJob) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "flatout.runs.tracking", str(folder.path)],
        env={**_LIMITS, **os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        creationflags=creation_flags(),
    )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(msgspec.json.encode(job))
    return process


def yield_to_others() -> None:
    """Gives this process, and what it starts, the lowest priority there is."""
    # Only here: it takes 20 ms to import.
    import psutil

    own = psutil.Process()
    try:
        if sys.platform == "win32":
            own.nice(psutil.IDLE_PRIORITY_CLASS)
            return
        own.nice(19)
        if sys.platform == "linux":
            # It runs only where no other program would.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            own.ionice(psutil.IOPRIO_CLASS_IDLE)
    except (psutil.Error, OSError):
        pass  # Some containers do not allow it.
