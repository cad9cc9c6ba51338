"""How many of this machine's CPUs other programs keep busy, by the system's own counts."""

from __future__ import annotations

import os
import time

import psutil

from flatout.system.clock import elapsed_s

# The counts are in hundredths of a second: less would say little.
_LEAST_S = 0.2
_IDLE = ("idle", "iowait")
# Counted within `user` and `nice` already.
_COUNTED = ("guest", "guest_nice")


class OtherLoad:
    """Counts from when it is made; this process and those it has started and awaited are left out.

    Source: proc_stat(5), for what is counted twice.
    """

    def __init__(self) -> None:
        self._began_s = elapsed_s()
        self._busy_s, self._own_s = _busy_s(), _own_s()

    def used_cpus(self) -> float:
        """CPUs that others have kept busy meanwhile, on average; waits where that was too short."""
        time.sleep(max(0.0, _LEAST_S - (elapsed_s() - self._began_s)))
        passed_s = elapsed_s() - self._began_s
        used_s = _busy_s() - self._busy_s - (_own_s() - self._own_s)
        return min(max(0.0, used_s / passed_s), float(os.cpu_count() or 1))


def _busy_s() -> float:
    times: dict[str, float] = psutil.cpu_times()._asdict()
    return sum(seconds for name, seconds in times.items() if name not in (*_IDLE, *_COUNTED))


def _own_s() -> float:
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system
