"""Profiles the steps of a program of the user's own, from within its own Python."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.monitor.script_advice import script_advice
from flatout.monitor.time_outside import program_stem
from flatout.schema.finding import Finding, Fix
from flatout.schema.script_profile import HookRequest, ScriptProfileRequest
from flatout.schema.step_profile import StepProfile
from flatout.schema.units import counted_text
from flatout.system import atomic_files, pass_signals, worker_process
from flatout.system.script_hook import hook_environment, own_packages, take_trace
from flatout.system.store.profile_reports import keep_report
from flatout.system.watched_program import WatchedProgram

_LOOK_S = 0.5


class _TooShort(msgspec.Struct):
    """A training that has ended before its profile. num_made: its steps."""

    num_made: int


class ScriptProfiled(msgspec.Struct, frozen=True, kw_only=True):
    """The profile of the program. trace: the file that was written."""

    report: StepProfile
    trace: str | None = None


class ScriptEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the program. exit_code: below zero for a signal."""

    exit_code: int


def profile_script(
    request: ScriptProfileRequest,
) -> Iterator[ScriptProfiled | Finding | ScriptEnded]:
    """Runs a program; gives its profile as soon as there is one, or why there is none, and its end.

    Raises:
        UsageError: no-program, program-not-found, program-not-started.
    """
    if not request.program or not request.program[0]:
        raise UsageError(
            "no-program",
            "there is no program to profile.",
            fix="flatout profile -- python train.py",
        )
    with tempfile.TemporaryDirectory(prefix="flatout-profile-") as folder:
        hook = HookRequest(
            out=folder,
            subject=program_stem(request.program),
            packages=own_packages(),
            num_steps=request.num_steps,
            has_trace=request.trace is not None,
        )
        program = WatchedProgram(
            request.program,
            None,
            environment=hook_environment(hook),
            is_stdout_free=request.is_json,
        )
        try:
            found: ScriptProfiled | Finding | None = None
            while not program.wait(_LOOK_S):
                if found is None and (found := _found_in(Path(folder), request)) is not None:
                    yield found
            assert program.end is not None
            if found is None:
                found = _found_in(Path(folder), request)
                yield found or _why_none(Path(folder), program.end.exit_code)
        finally:
            # Without us, its signals and the hook's folder are gone.
            while not program.wait(_LOOK_S):
                pass
            program.close()
    yield ScriptEnded(exit_code=program.end.exit_code)


def _found_in(folder: Path, request: ScriptProfileRequest) -> ScriptProfiled | Finding | None:
    """The first report: of several ranks, each writes its own."""
    for path in sorted(folder.glob("profile-*.json")):
        try:
            report = advised(atomic_files.read_json(path, StepProfile))
        except Exception as error:  # noqa: BLE001 - the program goes on
            return _not_profiled(
                f"its report could not be read: {type(error).__name__}: {error}",
                "flatout watch shows where its time goes from outside",
            )
        keep_report(report)
        trace, number = request.trace, path.stem.removeprefix("profile-")
        has_trace = trace is not None and take_trace(folder, number, Path(trace))
        return ScriptProfiled(report=report, trace=trace if has_trace else None)
    return None


def advised(report: StepProfile) -> StepProfile:
    """The report with what to change."""
    return msgspec.structs.replace(report, advice=script_advice(report))


def _why_none(folder: Path, exit_code: int) -> Finding:
    """Why the program has left no profile, as a warning."""
    problems = [atomic_files.read_json(path, str) for path in folder.glob("problem-*.json")]
    short = [atomic_files.read_json(path, _TooShort) for path in folder.glob("short-*.json")]
    num_made = max((one.num_made for one in short), default=0)
    if problems and "msgspec" in str(problems[0]):
        because, fix = problems[0], "install msgspec where the program runs: pip install msgspec"
    elif problems:
        because, fix = problems[0], "flatout watch shows where its time goes from outside"
    elif num_made:
        made = counted_text(num_made, "step")
        because = f"it has made {made}: a profile needs about 3 seconds of steps, at least 11"
        fix = "train longer, or use fewer steps of the profiler: --steps 3"
    elif exit_code < 0:
        because = f"it {worker_process.ending_text(exit_code)} before its profile was made"
        fix = "let it run for longer; flatout watch shows where its time goes from outside"
    elif short:
        because = "no optimizer of torch or Keras has made a step"
        fix = "profile a program that trains; others: flatout watch"
    else:
        because = "no Python that looks at PYTHONPATH has imported torch"
        fix = "start it without -I, -E and -S; a program without torch: flatout watch"
    return _not_profiled(str(because), fix)


def _not_profiled(because: str, fix: str) -> Finding:
    return Finding(
        rule="program-not-profiled",
        severity="warning",
        problem="there is no profile of this program.",
        because=because,
        fixes=(Fix(text=fix),),
    )


def end_like(exit_code: int) -> int:
    """Ends this process by the program's signal; else gives the exit code to end with."""
    return pass_signals.end_like(exit_code)
