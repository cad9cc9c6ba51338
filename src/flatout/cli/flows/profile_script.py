"""`flatout profile -- PROGRAM`: a program of the user's own runs as ever, and is profiled."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.monitor import script_profile
from flatout.monitor.script_profile import ScriptEnded, ScriptProfiled
from flatout.schema.finding import Finding, internal_error
from flatout.schema.script_profile import ScriptProfileRequest
from flatout.schema.step_profile import StepProfile


def run(
    program: Sequence[str],
    view: Mapping[str, Any],
    *,
    num_steps: int | None,
    trace: str | None,
    is_json: bool,
) -> int:
    """Runs it to its end; shows the report as soon as there is one.

    Args:
        program: with its arguments.
        view: see show_profile.View.
        num_steps: see ScriptProfileRequest.
        trace: a file as typed.
        is_json: the report goes to stdout, and what the program prints to stderr.

    Returns:
        The program's exit code, unless this process ends by its signal.

    Raises:
        UsageError: no-program, program-not-found, program-not-started, bench-report-not-writable.
    """
    if trace is not None:
        from flatout.bench.report import check_writable

        path = Path(trace).expanduser().absolute()
        check_writable(path, "--trace")
        trace = str(path)
    request = ScriptProfileRequest(
        program=tuple(program), num_steps=num_steps, trace=trace, is_json=is_json
    )
    report: StepProfile | None = None
    for value in script_profile.profile_script(request):
        if isinstance(value, ScriptProfiled):
            report = value.report
        if isinstance(value, ScriptEnded):
            return _end(value, report, is_json=is_json)
        try:
            _print(value, view, is_json=is_json)
        except Exception as error:  # noqa: BLE001 - the program and its end matter more
            _print_failure(error)
    raise AssertionError


def _print(value: ScriptProfiled | Finding, view: Mapping[str, Any], *, is_json: bool) -> None:
    from flatout.cli.render import show, show_profile

    if isinstance(value, Finding):
        show.print_finding(value)
    elif not is_json:
        files = [] if value.trace is None else [f"{value.trace}, a trace: https://ui.perfetto.dev"]
        show.print_note("")
        shown = show_profile.View(**view)
        show_profile.print_profile(value.report, shown, files, is_error=True)


def _end(ended: ScriptEnded, report: StepProfile | None, *, is_json: bool) -> int:
    if is_json:
        from flatout.cli.render import show

        show.print_json({"exit_code": ended.exit_code, "profile": report})
    return script_profile.end_like(ended.exit_code)


def _print_failure(error: Exception) -> None:
    from flatout.cli.render import show

    # Where nothing can be printed, there is nothing to say.
    with contextlib.suppress(Exception):
        show.print_finding(internal_error(error))


def show_report(report: StepProfile) -> None:
    """Prints the report of a notebook or a callback, with advice."""
    from flatout.cli.render import show_profile

    show_profile.print_profile(script_profile.advised(report), show_profile.View())
