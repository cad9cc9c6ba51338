"""The time of day and the passing of time."""

from __future__ import annotations

import time
from datetime import UTC, datetime

# Monotonic seconds, for durations; cheap enough (about 50 ns) to be read several times a step.
elapsed_s = time.perf_counter


# Seconds that this thread has worked: what other programs take is not in it.
thread_s = time.thread_time

# The same for all threads of this process.
process_s = time.process_time


# Waiting for what someone else is doing.
sleep_s = time.sleep


def now_s() -> float:
    """Seconds since the epoch, UTC: for what is stored."""
    return time.time()


def now_text() -> str:
    """The time of day in UTC as text, to the second: 2026-11-21T03:36:28Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
