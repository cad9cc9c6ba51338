"""`flatout watch`: runs a program, shows a line below its output, and sums up afterwards.

The program is started first; what only shows is imported while it starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from flatout.monitor import watch as watching
from flatout.monitor.watch import LeftBehind, Watch
from flatout.schema.finding import Finding, Fix, internal_error
from flatout.schema.watched import WatchRecord, WatchRequest

# Whoever presses Ctrl-C knows why the program has ended; and so does a pipe that was closed.
_INTERRUPTED = (-2, 130, 0xC000013A)
_SIGPIPE = -13


def run(program: Sequence[str], *, out: str | None, is_json: bool) -> int:
    """Runs it to its end; gives its exit code, or ends this process by its signal."""
    failure = record = None
    with Watch(WatchRequest(program=tuple(program), out=out, is_json=is_json)) as watch:
        try:
            record = _watched(watch)
        except Exception as error:  # noqa: BLE001 - the program and its end matter more
            failure = error
    from flatout.cli.render import show

    if failure is not None:
        # Where nothing can be printed, there is nothing to say.
        with contextlib.suppress(Exception):
            show.print_finding(internal_error(failure))
    elif is_json:
        show.print_json(record)
    return watching.end_like(watch.exit_code)


def _watched(watch: Watch) -> WatchRecord:
    from flatout.cli.render import show, show_watch

    for tick in watch.ticks():
        if isinstance(tick, LeftBehind):
            show.print_note(show_watch.left_behind_text(tick))
        elif watch.has_line:
            watch.show_line(show_watch.live_text(tick))
    record = watch.finish()
    show_watch.print_summary(record)
    return _explained(watch, record)


def _explained(watch: Watch, record: WatchRecord) -> WatchRecord:
    """With the causes of a failure, which are printed."""
    if record.exit_code in (0, *_INTERRUPTED, _SIGPIPE) or record.output is None:
        return record
    # All rules are behind it.
    from flatout.cli.render import show_doctor
    from flatout.doctor import explain

    causes = explain.causes_in(failed(record), watching.end_of_output(record), record.machine)
    show_doctor.print_causes(causes)
    if not causes:
        return record
    return watch.keep(msgspec.structs.replace(record, causes=causes))


def failed(record: WatchRecord) -> Finding:
    """The failure of a program as bad news."""
    assert record.exit_code is not None
    return Finding(
        rule="watched-program-failed",
        severity="error",
        problem=f"`{record.program[0]}` {watching.ending_text(record.exit_code)}.",
        fixes=(Fix(text=f"flatout explain {record.output}"),) if record.output else (),
    )


def show(text: str, *, is_json: bool) -> int:
    """Shows a record again."""
    from flatout.cli.render import show, show_doctor, show_watch

    record = watching.read_record(text)
    if is_json:
        show.print_json(record)
    else:
        show_watch.print_record(record)
        show_doctor.print_causes(record.causes)
    return 0


def list_all(*, is_json: bool) -> int:
    """Lists the records."""
    from flatout.cli.render import show, show_watch

    lines = watching.list_records()
    if is_json:
        show.print_json(lines)
    else:
        show_watch.print_records(lines)
    return 0
