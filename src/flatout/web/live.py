"""A run's new lines as server-sent events, for as long as a process is training it.

    event: lines   data: a JSON array of lines   id: where the next ones begin
    event: ended   the run is no longer being trained

A browser that lost the connection asks for those after the id it got last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from flatout.errors import FlatoutError
from flatout.schema.addresses import masked
from flatout.schema.run_lines import Line
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_tail import RunTail

_POLL_S = 0.5
# A connection with nothing new says so, lest a proxy close it.
_SILENT_POLLS = 30
# Of the lines that came at once.
_MOST_LINES = 500


def live_lines(
    request: Request, folder: RunFolder, is_stopping: Callable[[], bool]
) -> StreamingResponse:
    """The answer to a request for the new lines of a run."""
    position = _position(request.headers.get("last-event-id") or request.query_params.get("at"))
    tail = RunTail(folder, is_from_end=position is None, position=position)
    events = _events(tail, folder.lock().is_taken, is_stopping)
    return StreamingResponse(events, media_type="text/event-stream")


def _position(text: str | None) -> tuple[int, int] | None:
    events, _, metrics = (text or "").partition("-")
    if not (events + metrics).isascii() or not (events.isdigit() and metrics.isdigit()):
        return None
    return int(events[:18]), int(metrics[:18])


async def _events(
    tail: RunTail, is_working: Callable[[], bool], is_stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    num_silent = 0
    while not is_stopping():
        try:
            # Checked before reading: what was written before the end is then read for certain.
            is_last = not await run_in_threadpool(is_working)
            lines = await run_in_threadpool(tail.new_lines)
        except (FlatoutError, OSError):
            # Removed or damaged: the page says so when it is fetched again.
            is_last, lines = True, []
        if lines:
            yield _event(lines, tail.position)
        if is_last:
            yield "event: ended\ndata: {}\n\n"
            return
        num_silent = 0 if lines else num_silent + 1
        if num_silent % _SILENT_POLLS == _SILENT_POLLS - 1:
            yield ": waiting\n\n"
        await asyncio.sleep(_POLL_S)


def _event(lines: list[Line], position: tuple[int, int]) -> str:
    text = masked(msgspec.json.encode(lines[-_MOST_LINES:]).decode())
    return f"id: {position[0]}-{position[1]}\nevent: lines\ndata: {text}\n\n"
