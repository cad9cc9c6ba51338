"""Long waits of a rank for the others, reported while they last: for whom, and until when.

A thread of its own looks at the clock. A rank that waits says so in the store of the rendezvous,
so that the first one knows who does not: that one is late, or cannot be reached.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from flatout.engine.ranks.rank_env import RankEnv
from flatout.schema.finding import Finding, Fix
from flatout.system.clock import elapsed_s

# A rank that waits this long announces it; a rank that has not by the time of the report is late.
_MARKED_AFTER_S = 2.0
REPORT_AFTER_S = 10.0
# A rank that is late at every step is a slow machine, and not to fill the run's history: of more
# waits than so many in an hour only those are reported that last six times as long.
_MOST_REPORTED, _HOUR_S = 5, 3600.0
OFTEN_FACTOR = 6


class WaitWatchdog:
    """Watches the waits of one rank.

    since_s: when it began to wait, None while it does not. meeting: which meeting it waits at.

    Args:
        store: torch.distributed's.
        rank_env: which rank this is, of how many.
    """

    def __init__(self, store: Any, rank_env: RankEnv) -> None:
        self.since_s: float | None = None
        self.meeting = 0
        self._store = store
        self._rank_env = rank_env
        self._is_over = threading.Event()
        self._marked = self._reported = -1
        self._reported_s: deque[float] = deque(maxlen=_MOST_REPORTED)

    def begin(
        self, report: Callable[[Finding], None], report_after_s: float = REPORT_AFTER_S
    ) -> None:
        """Watches from now on.

        Args:
            report: is called from another thread, while this one waits.
            report_after_s: how long a wait lasts before it is reported, unless there were many.
        """
        every_s = report_after_s / 10

        def watch() -> None:
            while not self._is_over.wait(every_s):
                # The store is gone with its rank, or where this rank has left.
                with contextlib.suppress(RuntimeError):
                    self._check(report, report_after_s)

        threading.Thread(target=watch, name="patience", daemon=True).start()

    def end(self) -> None:
        """Watches no more."""
        self._is_over.set()

    def _check(self, report: Callable[[Finding], None], report_after_s: float) -> None:
        since_s, meeting = self.since_s, self.meeting
        if since_s is None:
            return
        now_s = elapsed_s()
        waited_s = now_s - since_s
        if waited_s > report_after_s * _MARKED_AFTER_S / REPORT_AFTER_S and self._marked < meeting:
            self._marked = meeting
            self._store.set(_mark(self._rank_env.rank), str(meeting))
        is_often = len(self._reported_s) == _MOST_REPORTED and now_s - self._reported_s[0] < _HOUR_S
        if (
            waited_s > report_after_s * (OFTEN_FACTOR if is_often else 1)
            and self._reported < meeting
        ):
            self._reported = meeting
            self._reported_s.append(now_s)
            late = [rank for rank in range(self._rank_env.size) if not self._waits(rank, meeting)]
            report(late_ranks(late, self._rank_env, waited_s))

    def _waits(self, rank: int, meeting: int) -> bool:
        return rank == self._rank_env.rank or (
            self._store.check([_mark(rank)]) and int(self._store.get(_mark(rank))) >= meeting
        )


def late_ranks(late: list[int], rank_env: RankEnv, waited_s: float) -> Finding:
    """The note on a long wait.

    Args:
        late: the ranks that are waited for; none where all of them wait.
        rank_env: of who waits.
        waited_s: until now.
    """
    size = rank_env.size
    who = f"rank {' and '.join(map(str, late))} of {size}" if late else f"any of {size} ranks"
    return Finding(
        rule="rank-late",
        severity="note",
        problem=f"waiting for {who}, {waited_s:.0f} s so far and {rank_env.limit_s:g} s at most.",
        because="it is slow, hung or unreachable",
        fixes=(Fix(text="if this happens again, check what else runs on its machine"),),
    )


def _mark(rank: int) -> str:
    return f"waits/{rank}"
