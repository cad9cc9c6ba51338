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
from flatout.system import atomic_files, pass_signals
from flatout.system.script_hook import hook_environment, own_packages
from flatout.system.watched_program import WatchedProgram

_LOOK_S = 0.5


class _TooShort(msgspec.Struct):
    """A training that has ended before its profile. num_made: its steps."""

    num_made: int


class ScriptEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the program. exit_code: below zero for a signal."""

    exit_code: int


def profile_script(
    request: ScriptProfileRequest,
) -> Iterator[StepProfile | Finding | ScriptEnded]:
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
            trace=None if request.trace is None else str(Path(request.trace).absolute()),
        )
        program = WatchedProgram(
            request.program,
            None,
            environment=hook_environment(hook),
            is_stdout_free=request.is_json,
        )
        try:
            found = None
            while not program.wait(_LOOK_S):
                if found is None and (found := _profile_in(Path(folder))) is not None:
                    yield found
            if found is None:
                yield _profile_in(Path(folder)) or _why_none(Path(folder))
        finally:
            program.close()
    assert program.end is not None
    yield ScriptEnded(exit_code=program.end.exit_code)


def _profile_in(folder: Path) -> StepProfile | None:
    """The first report: of several ranks, each writes its own."""
    for path in sorted(folder.glob("profile-*.json")):
        return advised(atomic_files.read_json(path, StepProfile))
    return None


def advised(report: StepProfile) -> StepProfile:
    """The report with what to change."""
    return msgspec.structs.replace(report, advice=script_advice(report))


def _why_none(folder: Path) -> Finding:
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
    elif short:
        because = "no optimizer of torch or Keras has made a step"
        fix = "profile a program that trains; others: flatout watch"
    else:
        because = "no Python that looks at PYTHONPATH has imported torch"
        fix = "start it without -I, -E and -S; a program without torch: flatout watch"
    return Finding(
        rule="program-not-profiled",
        severity="warning",
        problem="there is no profile of this program.",
        because=str(because),
        fixes=(Fix(text=fix),),
    )


def end_like(exit_code: int) -> int:
    """Ends this process by the program's signal; else gives the exit code to end with."""
    return pass_signals.end_like(exit_code)
