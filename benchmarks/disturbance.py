"""How much CPU time other programs used during a measurement."""

from __future__ import annotations

import time

import psutil


def others_busy_s() -> float:
    """CPU seconds used by others than this process and its children.

    Children that have ended and were waited for count as own.
    """
    times = psutil.cpu_times()
    own = psutil.Process().cpu_times()
    running = [one.cpu_times() for one in psutil.Process().children()]
    mine_s = own.user + own.system + own.children_user + own.children_system
    mine_s += sum(one.user + one.system for one in running)
    return float(times.user + times.system + getattr(times, "nice", 0.0) - mine_s)


class Disturbance:
    """Wraps a measurement; share: of one core, used by other programs."""

    def __enter__(self) -> Disturbance:
        self.share = 0.0
        self._others_s, self._begin_s = others_busy_s(), time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        took_s = time.perf_counter() - self._begin_s
        self.share = max(0.0, others_busy_s() - self._others_s) / took_s
