"""The process that ingests, asked from outside: what it tells, and its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from flatout.errors import RunFailed
from flatout.nouns.finding import finding_from
from flatout.nouns.ingestion import AnyIngestAnswer, IngestRequest
from flatout.nouns.question import Broken
from flatout.system.child import ending_text
from flatout.system.conversing import Conversation


def ask(python: str | Sequence[str], request: IngestRequest) -> Iterator[AnyIngestAnswer]:
    """Ingests in a process of its own, which ends when nobody reads on.

    The last line is `Broken` if it failed, with what the process has printed.

    Args:
        python: as for `Conversation`.
        request: with paths as that process sees them.
    """
    with Conversation(python, "flatout.engine.ingest") as process:
        is_told = False
        for line in process.ask(request, AnyIngestAnswer):
            if isinstance(line, Broken):
                is_told = True
                line = msgspec.structs.replace(line, printed=process.printed())
            yield line
        code = process.exit_code()
        if code != 0 and not is_told:
            yield _died(code, process.printed())


def _died(code: int, printed: str) -> Broken:
    died = RunFailed(
        "ingest-worker-died",
        "the process that ingests broke off without saying why; what was done is kept.",
        because=f"it {ending_text(code)}",
        fix="look into what it printed; if memory ran out, use fewer --workers; then run it again",
    )
    return Broken(finding=finding_from(died), exit_code=1, printed=printed)
