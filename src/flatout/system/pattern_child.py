"""Tries patterns on texts and replies how it went: `python -P -m flatout.system.pattern_child`.

In a process of its own, because a pattern that takes forever cannot be stopped everywhere.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import time
from types import FrameType
from typing import Any

# Computing time of one search in 2 KiB. Shipped patterns need a hundredth of it, two `.*` between
# words almost half of it; what needs more takes minutes or forever.
SLOW_S = 1.5
# A pattern that was tried for so long, on the worst texts first, is fine.
_ENOUGH_S = 2.0


class _Slow(Exception):
    """The time for a search is up."""


def slow_text(pattern: str, texts: list[str]) -> str | None:
    """The first text in which a search takes too long; None if there is none."""
    compiled, begun_s = re.compile(pattern, re.IGNORECASE), time.process_time()
    for text in texts:
        at_s = time.process_time()
        if at_s - begun_s > _ENOUGH_S:
            return None
        with contextlib.suppress(_Slow):
            _search(compiled, text)
            if time.process_time() - at_s < SLOW_S:
                continue
        return text
    return None


def _search(pattern: re.Pattern[str], text: str) -> None:
    if sys.platform == "win32":
        # There is no clock of a process's own time; whoever waits for this process ends it.
        pattern.search(text)
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
    try:
        pattern.search(text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Slow


def main() -> None:
    """Replies to each request, a line of JSON, with another one."""
    if sys.platform != "win32":
        signal.signal(signal.SIGVTALRM, _stop)
    for line in sys.stdin.buffer:
        request: dict[str, Any] = json.loads(line)
        reply = {"slow_text": slow_text(request["pattern"], request["texts"])}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
