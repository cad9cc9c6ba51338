"""The process that ingests, run from outside: what it reports, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.errors import RunFailed
from flatout.schema.finding import finding_from
from flatout.schema.ingest_protocol import AnyIngestReply, IngestRequest
from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.worker_process import ending_text


def stream_replies(python: str | Sequence[str], request: IngestRequest) -> Iterator[AnyIngestReply]:
    """Ingests in a process of its own, which ends when no one reads on.

    The last line is `ProcessFailed` if it failed, with what the process has printed.

    Args:
        python: as for `JsonProcess`.
        request: with paths as that process sees them.
    """
    with JsonProcess(python, "flatout.engine.ingest") as process:
        try:
            yield from process.ask(request, AnyIngestReply)
        except ProcessEnded as ended:
            yield _died(ended.exit_code, process.printed())


def _died(code: int, printed: str) -> ProcessFailed:
    died = RunFailed(
        "ingest-worker-died",
        "the ingest process exited unexpectedly; finished shards are kept.",
        because=f"it {ending_text(code)}",
        fix="check its output; if memory ran out, use fewer --workers; then run it again",
    )
    return ProcessFailed(finding=finding_from(died), exit_code=1, printed=printed)
