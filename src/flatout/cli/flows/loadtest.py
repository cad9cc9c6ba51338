"""A load test: shown while it runs, written where it was asked for, reported at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.bench.report import check_writable
from flatout.cli.render import show
from flatout.cli.render.show_loadtest import LoadDisplay, print_load
from flatout.errors import UsageError
from flatout.serve import load_report
from flatout.serve.load_target import LoadRequest
from flatout.serve.loadtest import LoadTest

_INTERRUPTED_CODE = 130


def run(request: LoadRequest, outputs: Sequence[str], *, is_json: bool) -> int:
    """Carries it out; Ctrl-C ends it with what was measured so far. Returns the exit code.

    Raises:
        UsageError: loadtest-bad-output, bench-report-not-writable; what `find_target` says.
        RunFailed: what LoadTest says.
    """
    paths = [_checked(text) for text in outputs]
    with LoadTest(request) as test:
        with LoadDisplay() as display:
            try:
                for event in test.events():
                    display.take(event)
            except KeyboardInterrupt:
                test.interrupt()
                if not test.has_started:
                    raise
        file = test.result()
    for path in paths:
        load_report.write(path, file)
    if is_json:
        show.print_json(file)
    else:
        print_load(file, outputs)
    if file.finding is not None:
        show.print_finding(file.finding)
        return 1
    return _INTERRUPTED_CODE if file.is_interrupted else 0


def _checked(text: str) -> Path:
    path = Path(text).expanduser()
    if path.suffix.lower() not in (".json", ".html"):
        raise UsageError(
            "loadtest-bad-output",
            f"`--output {text}` is neither a .json nor a .html file.",
            fix="name a result to compare, such as load.json, or a report, such as load.html",
        )
    check_writable(path, "--output")
    return path
