"""The load of other programs on the CPUs during a measurement."""

from __future__ import annotations

import contextlib

import psutil

from flatout.schema.tuning import Load
from flatout.system.clock import elapsed_s

# The system counts in hundredths of a second: of a shorter time it says nothing.
_LEAST_S = 0.1

# Of psutil's times: a CPU that does none of these works. Time that the host of a virtual machine
# gives to others is theirs, too: this machine does not have it.
_IDLE = ("idle", "iowait")


class LoadWatch:
    """Started before a measurement; `load` says what others took since then.

    This process, the one that has started it and all that it has started are not others. What has
    been started and has ended in the meantime counts as own where the system keeps its time, which
    Windows does not: there it is only seen while it runs.
    """

    def __init__(self) -> None:
        self._begin_s = elapsed_s()
        self._busy_s = _busy_s()
        self._own_s = _own_s()

    def load(self) -> Load | None:
        """The load since the beginning; None where too little time has gone by to measure it."""
        took_s = elapsed_s() - self._begin_s
        if took_s < _LEAST_S:
            return None
        busy_s = _busy_s() - self._busy_s
        own_s = _own_s() - self._own_s
        num_cpus = psutil.cpu_count() or 1
        others = max(0.0, busy_s - max(0.0, own_s)) / took_s
        return Load(other_cpus=min(others, float(num_cpus)), num_cpus=num_cpus)


def _busy_s() -> float:
    """Seconds that all CPUs of the machine have worked."""
    times = psutil.cpu_times()._asdict()
    # What guests take is in `user` already.
    counted = {name: value for name, value in times.items() if not name.startswith("guest")}
    return float(sum(value for name, value in counted.items() if name not in _IDLE))


def _own_s() -> float:
    """Seconds of work of this process with its ended children, of those that run, and of the one
    that has started it, which shows what continues.
    """
    own = psutil.Process()
    total_s = _seconds(own, has_children=True)
    with contextlib.suppress(psutil.Error):
        parent = own.parent()
        total_s += _seconds(parent, has_children=False) if parent is not None else 0.0
    for child in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total_s += _seconds(child, has_children=True)
    return total_s


def _seconds(process: psutil.Process, *, has_children: bool) -> float:
    times = process.cpu_times()
    ended = (times.children_user + times.children_system) if has_children else 0.0
    return float(times.user + times.system + ended)
