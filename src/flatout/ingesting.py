"""The verb that makes shards of a source: checked here, carried out in a process of its own."""

from __future__ import annotations

from collections.abc import Generator

from flatout import __version__, flow
from flatout.nouns.ingestion import AnyIngestAnswer, IngestRequest
from flatout.nouns.question import Broken
from flatout.system import environments, ingest_process, made_environments


def ingest(request: IngestRequest) -> Generator[AnyIngestAnswer]:
    """Makes a folder hold what a source holds: what is done, while it is iterated over.

    Raises:
        UsageError: bad-share; what choosing an interpreter says.
    """
    request.check()
    request = made_environments.with_interpreter(request)
    python = environments.find_interpreter(request.python)
    environments.check_interpreter(python, __version__)
    for line in ingest_process.ask(python, request):
        if isinstance(line, Broken) and line.has_traceback:
            line = line.kept_in(str(flow.record_crash(line.printed)))
        yield line
