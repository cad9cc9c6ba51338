"""Shows an export while it is made, and what was written."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from flatout.cli.flows import explain_failure
from flatout.cli.render import show
from flatout.cli.render.exported import exported_lines
from flatout.cli.render.live import Waiting
from flatout.schema.export_protocol import Exported, Exporting, ExportReply
from flatout.schema.finding import Finding
from flatout.schema.predict_protocol import Noted, ProcessFailed


def show_export(replies: Generator[ExportReply], *, is_json: bool) -> int:
    """What was exported, in words or as one JSON document; gives the exit code."""
    exported: Exported | None = None
    failure: Finding | None = None
    code = 0
    with contextlib.closing(replies), Waiting("starting") as waiting:
        for reply in replies:
            if isinstance(reply, Exporting):
                waiting.update(reply.what)
            elif isinstance(reply, Noted | ProcessFailed):
                waiting.stop()
                show.print_finding(reply.finding)
            if isinstance(reply, ProcessFailed):
                code, failure = reply.exit_code, reply.finding
                if code != 2:
                    explain_failure.explain(reply.finding, reply.printed)
            elif isinstance(reply, Exported):
                exported = reply
    if is_json:
        show.print_json(exported if exported is not None else {"error": failure})
    elif exported is not None:
        show.print_rows(exported_lines(exported))
    return code
