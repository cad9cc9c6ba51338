"""A run's news as server-sent events, for as long as a process is training it.

    event: lines   there are new lines; id: the state of the run's files
    event: ended   the run is no longer being trained

The page then fetches itself again. The lines are not sent: after a long silence there may be more
of them than memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from flatout.errors import FlatoutError
from flatout.system.store.daily_files import size_bytes
from flatout.system.store.run_folder import RunFolder

_POLL_S = 0.5
# A connection with nothing new says so, lest a proxy close it.
_SILENT_POLLS = 30


def state_of(folder: RunFolder) -> str:
    """The sizes of a run's files, which grow with every line: `1024-65536`."""
    return f"{size_bytes(folder.events)}-{size_bytes(folder.metrics)}"


def run_events(
    folder: RunFolder, known: str | None, is_stopping: Callable[[], bool]
) -> StreamingResponse:
    """The stream of a run's news. known: the state that the browser has seen."""
    return StreamingResponse(_events(folder, known, is_stopping), media_type="text/event-stream")


async def _events(
    folder: RunFolder, known: str | None, is_stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    num_silent = 0
    while not is_stopping():
        is_last, state = await run_in_threadpool(_look_at, folder)
        if state != known:
            yield f"id: {state}\nevent: lines\ndata: {{}}\n\n"
        if is_last:
            yield "event: ended\ndata: {}\n\n"
            return
        num_silent = 0 if state != known else num_silent + 1
        if num_silent % _SILENT_POLLS == _SILENT_POLLS - 1:
            yield ": waiting\n\n"
        known = state
        await asyncio.sleep(_POLL_S)


def _look_at(folder: RunFolder) -> tuple[bool, str]:
    """Whether the run has ended, and the state of its files."""
    try:
        # Asked first: what was written before the end is then in the state for certain.
        is_last = not folder.lock().is_taken()
    except (FlatoutError, OSError):
        # The page says what is wrong when it is fetched again.
        is_last = True
    return is_last, state_of(folder)
