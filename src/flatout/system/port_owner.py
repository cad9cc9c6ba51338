"""The processes of this machine that serve a port, and the CPU time that they use."""

from __future__ import annotations

import contextlib
import socket

import psutil


def is_this_machine(host: str) -> bool:
    """Whether an address is one of this machine's own."""
    own = {
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
    }
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found & own)


def pid_on_port(port: int) -> int | None:
    """The process that listens on a TCP port; None if there is none, or it may not be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port:
                return one.pid
    return None


def tree_cpu_s(pid: int) -> dict[tuple[int, float], float]:
    """CPU seconds of a process and all below it, by number and time of start."""
    found: dict[tuple[int, float], float] = {}
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                found[one.pid, one.create_time()] = times.user + times.system
    return found


def cpu_s_between(
    before: dict[tuple[int, float], float], after: dict[tuple[int, float], float]
) -> float:
    """CPU seconds used between two readings, without processes that have ended in between."""
    return sum(used_s - before.get(process, 0.0) for process, used_s in after.items())
