"""The verb that makes shards of a source: checked here, carried out in a process of its own."""

from __future__ import annotations

from collections.abc import Generator

from flatout.runs import api as runs_api
from flatout.runs import ingest_process
from flatout.schema.ingest_protocol import AnyIngestReply, IngestRequest
from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.store import interpreters


def ingest(request: IngestRequest) -> Generator[AnyIngestReply]:
    """Makes a folder hold what a source holds: what is done, while it is iterated over.

    Raises:
        UsageError: bad-share; what choosing an interpreter says.
    """
    request.check()
    python, _ = interpreters.resolve_with_flatout(request.python, request.env)
    for line in ingest_process.stream_replies(python, request):
        if isinstance(line, ProcessFailed) and line.has_traceback:
            line = line.kept_in(str(runs_api.record_crash(line.printed)))
        yield line
