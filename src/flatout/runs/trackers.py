"""The trackers of a run, from outside: send it to one afterwards, and say what they lack."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.runs import api as runs_api
from flatout.runs.sweep import result
from flatout.schema.finding import Finding, Fix
from flatout.schema.run import Run
from flatout.schema.suggested_command import show_command
from flatout.schema.sweep import Sweep
from flatout.schema.tracking import NO_TRACKER, TrackerJob, TrackerPosition, TrackerTarget
from flatout.schema.units import counted_text
from flatout.system import clock, tracker_process
from flatout.system.store import tracker_files
from flatout.system.store.run_folder import RunFolder, read_run

# Once the run has ended: the shell is waiting.
_LIMIT_S = 15.0
_LOOK_EVERY_S = 0.2
_KILLED = "the process that sends was killed"


def send_to_tracker(text: str, where: str) -> TrackerPosition:
    """Sends a run to a tracker, for as long as it is trained; what has arrived is not sent again.

    Raises:
        UsageError: unknown-run, bad-tracker, tracker-not-installed, tracker-in-use;
        RunFailed: tracker-not-reached.
    """
    run, target = runs_api.read(text), tracker_process.requested_tracker(where)
    folder = RunFolder(Path(run.folder))
    files = tracker_files.TrackerFiles(folder, target)
    if files.lock.is_taken():
        raise UsageError(
            "tracker-in-use",
            f"another process is sending run {run.id} to {target}.",
            fix=f"see how far it is: {show_command(run.typed)}",
        )
    # Its folder, for a run that was not sent before.
    files.write(files.read())
    job = TrackerJob(target=target, is_following=run.status == "running")
    tracker_process.run_tracker(folder, job)
    position = files.read()
    if position.finding is not None or not position.is_done:
        finding = position.finding
        raise RunFailed(
            "tracker-not-reached",
            f"{target} has not received everything of run {run.id}.",
            because=finding.because if finding else _KILLED,
            fix="check that it is running, then try again: what has arrived is not sent twice",
        )
    return position


def with_trackers(run: Run) -> Run:
    """A run with how far each tracker has come to which it is sent."""
    folder = RunFolder(Path(run.folder))
    found = tuple(_judged(run, folder, one) for one in tracker_files.positions(folder))
    return msgspec.structs.replace(run, trackers=found)


def _judged(run: Run, folder: RunFolder, position: TrackerPosition) -> TrackerPosition:
    """A position; with a finding where the process that sends was killed."""
    if position.is_done or position.finding is not None or run.status == "running":
        return position
    if tracker_files.TrackerFiles(folder, position.target).lock.is_taken():
        return position
    finding = tracker_files.not_received(folder, position.target, _KILLED)
    return msgspec.structs.replace(position, finding=finding)


def typed_trackers(run: Run) -> tuple[str, ...]:
    """Values of `--track` that send another run where this one was sent; none if it would be."""
    sent = [one.target for one in tracker_files.positions(RunFolder(Path(run.folder)))]
    usual: Sequence[TrackerTarget] = ()
    with contextlib.suppress(FlatoutError):
        usual = tracker_process.requested_trackers((), None)
        if {one.key for one in usual} == {one.key for one in sent}:
            return ()
    if not sent:
        return (NO_TRACKER,) if usual else ()
    return tuple(tracker_process.typed_tracker(one) for one in sent)


def tracker_findings(run: Run) -> list[Finding]:
    """What the trackers of a run that has ended lack; waits some seconds for those that send."""
    _wait_for_trackers([run])
    return _lacking(run)


def sweep_findings(sweep: Sweep) -> list[Finding]:
    """What the trackers of a sweep's trials lack, as one finding; waits as `tracker_findings`."""
    runs = []
    for one in sweep.trials:
        folder = result.run_of(sweep.header, one.trial)
        if tracker_files.positions(folder):
            with contextlib.suppress(FlatoutError):
                runs.append(read_run(folder))
    _wait_for_trackers(runs)
    lacking = {run.id: found for run in runs if (found := _lacking(run))}
    findings = [finding for found in lacking.values() for finding in found]
    if len(lacking) < 2:
        return findings
    first = next((one for one in findings if one.severity == "warning"), findings[0])
    num_text = counted_text(len(lacking), "trial")
    return [
        Finding(
            rule=first.rule,
            severity=first.severity,
            problem=f"trackers have not received everything of {num_text} of {sweep.id}; the sweep "
            "itself is unaffected.",
            because=first.because,
            fixes=(*first.fixes, Fix(text=f"the same for each of {', '.join(lacking)}")),
        )
    ]


def _wait_for_trackers(runs: Sequence[Run]) -> None:
    end_s = clock.elapsed_s() + _LIMIT_S
    while clock.elapsed_s() < end_s and any(
        not one.is_done and one.finding is None
        for run in runs
        for one in tracker_files.positions(RunFolder(Path(run.folder)))
    ):
        clock.sleep_s(_LOOK_EVERY_S)


def _lacking(run: Run) -> list[Finding]:
    again = show_command(run.typed)
    return [
        one.finding
        or Finding(
            rule="tracker-not-reached",
            severity="note",
            problem=f"{one.target} is still receiving {run.id}.",
            fixes=(Fix(text=f"see how far it is: {again}"),),
        )
        for one in with_trackers(run).trackers
        if one.finding is not None or not one.is_done
    ]
