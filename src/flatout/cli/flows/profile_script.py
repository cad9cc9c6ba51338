"""`flatout profile -- PROGRAM`: a program of the user's own runs as ever, and is profiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.monitor import script_profile
from flatout.monitor.script_profile import ScriptEnded
from flatout.schema.finding import Finding
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
        num_steps, trace: see ScriptProfileRequest.
        is_json: the report goes to stdout, and what the program prints to stderr.

    Returns:
        The program's exit code, unless this process ends by its signal.
    """
    request = ScriptProfileRequest(
        program=tuple(program), num_steps=num_steps, trace=trace, is_json=is_json
    )
    report: StepProfile | None = None
    for value in script_profile.profile_script(request):
        from flatout.cli.render import show, show_profile

        if isinstance(value, StepProfile):
            report = value
            if not is_json:
                files = [] if trace is None else [f"{trace}, a trace: https://ui.perfetto.dev"]
                show.print_note("")
                show_profile.print_profile(report, show_profile.View(**view), files, is_error=True)
        elif isinstance(value, Finding):
            show.print_finding(value)
        else:
            return _end(value, report, is_json=is_json)
    raise AssertionError


def _end(ended: ScriptEnded, report: StepProfile | None, *, is_json: bool) -> int:
    if is_json:
        from flatout.cli.render import show

        show.print_json({"exit_code": ended.exit_code, "profile": report})
    return script_profile.end_like(ended.exit_code)


def show_report(report: StepProfile) -> None:
    """Prints the report of a notebook or a callback, with advice."""
    from flatout.cli.render import show_profile

    show_profile.print_profile(script_profile.advised(report), show_profile.View())
