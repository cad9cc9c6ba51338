"""Live: the machine now and before, from the samples of `flatout monitor`, and its alarms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from flatout.schema.alarm import Alarm
from flatout.schema.machine_sample import MachineSample
from flatout.system.clock import elapsed_s
from flatout.system.store import daily_files
from flatout.system.store.jsonl_scan import last_line
from flatout.web.machine_charts import TimeView, machine_charts, time_view
from flatout.web.page import PageRequest, WebPage, section

_RANGES_H = (1, 6, 24, 7 * 24, 30 * 24)
_NUM_ALARMS = 100
_POLL_S = 2.0
# A connection with nothing new says so, lest a proxy close it.
_SILENT_POLLS = 8
# A chart of more hours is drawn again less often: after about a pixel. The newest sample is on
# the same page, and should not be old.
_LEAST_PAUSE_S, _MOST_PAUSE_S = 5.0, 60.0
_PAUSE_S_PER_HOUR = 2.5


def live_page(request: PageRequest) -> WebPage:
    """The newest sample, the history as charts, and the last alarms."""
    view = time_view(request)
    drawn = machine_charts(request.context.indexing, view)
    return WebPage(
        template="live",
        data={
            "hours": view.hours,
            "ranges_h": _RANGES_H,
            "is_sampled": daily_files.is_monitor_running(),
            "sample": section(_newest),
            "charts": drawn.charts,
            "chart_problems": drawn.problems,
            "share_read": drawn.share_read,
            "alarms": section(_alarms),
        },
    )


def live_charts(request: PageRequest) -> WebPage:
    """The charts alone; `panel`, `from` and `to` choose a part."""
    panel = request.query.get("panel")
    drawn = machine_charts(request.context.indexing, time_view(request), panel)
    return WebPage(template="", data=msgspec.structs.asdict(drawn))


def live_events(view: TimeView, is_stopping: Callable[[], bool]) -> StreamingResponse:
    """Server-sent events: `lines`, without content, where the page has news."""
    pause_s = min(max(_LEAST_PAUSE_S, _PAUSE_S_PER_HOUR * view.hours), _MOST_PAUSE_S)
    return StreamingResponse(_events(pause_s, is_stopping), media_type="text/event-stream")


async def _events(pause_s: float, is_stopping: Callable[[], bool]) -> AsyncIterator[str]:
    samples, alarms = await run_in_threadpool(_state)
    sent_s, num_silent = elapsed_s(), 0
    while not is_stopping():
        new_samples, new_alarms = await run_in_threadpool(_state)
        is_due = new_samples != samples and elapsed_s() - sent_s >= pause_s
        if is_due or new_alarms != alarms:
            samples, alarms, sent_s, num_silent = new_samples, new_alarms, elapsed_s(), 0
            yield "event: lines\ndata: {}\n\n"
        elif (num_silent := num_silent + 1) % _SILENT_POLLS == 0:
            yield ": waiting\n\n"
        await asyncio.sleep(_POLL_S)


def _state() -> tuple[tuple[str, int], int]:
    """What changes with a sample, and with an alarm."""
    folder = daily_files.monitor_folder()
    newest = max(daily_files.day_files(folder), default=None)
    samples = (newest[0], daily_files.size_bytes(newest[1])) if newest is not None else ("", 0)
    return samples, daily_files.size_bytes(folder / daily_files.ALARMS)


def _newest() -> MachineSample | None:
    newest = max(daily_files.day_files(daily_files.monitor_folder()), default=None)
    found: Any = last_line(newest[1], MachineSample) if newest is not None else None
    return found if isinstance(found, MachineSample) else None


def _alarms() -> list[Alarm]:
    """The last alarms, the newest first."""
    return daily_files.read_alarms(daily_files.monitor_folder())[: -_NUM_ALARMS - 1 : -1]
