"""Ranks as child processes on this machine, with nothing between them and flatout."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from flatout.engine.launch.job import Job, rank_variables
from flatout.engine.listening import SOCKET_NAME
from flatout.nouns.placement import ending_code
from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.variables import loopback_variables

_LOOPBACK = "127.0.0.1"
_POLLED_EVERY_S = 0.05
# After one rank has failed, the others notice by themselves, and rank 0 tells it.
_GRACE_S = 20.0
# Where it was rank 0 itself that has failed, there is nobody left to tell it to.
_GRACE_WITHOUT_FIRST_S = 5.0


def launch(job: Job) -> int:
    """Starts the ranks, waits until all have ended, and gives the launcher's exit code."""
    # Taken here, and handed on to rank 0: found free, it could be taken until that one has started.
    with socket.create_server((_LOOPBACK, 0)) as listening:
        ranks = [_start(job, rank, listening) for rank in range(job.num_ranks)]
    try:
        _wait(ranks)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    codes = {number: rank.wait() for number, rank in enumerate(ranks)}
    for number, code in codes.items():
        if code:
            print(f"rank {number} of {job.num_ranks} ended with code {code}", file=sys.stderr)
    return ending_code(codes)


def _start(job: Job, rank: int, listening: socket.socket) -> subprocess.Popen[bytes]:
    place = _LOOPBACK, int(listening.getsockname()[1])
    variables = rank_variables(
        rank, job.num_ranks, local_rank=rank, num_local=job.num_ranks, place=place
    )
    handed_on: tuple[int, ...] = ()
    # Windows has no numbers of open files that a child could be given.
    if rank == 0 and sys.platform != "win32":
        handed_on = (listening.fileno(),)
        variables[SOCKET_NAME] = str(listening.fileno())
    # In this process's group: whoever ends it by its group ends them.
    return subprocess.Popen(
        job.command(),
        env={**os.environ, **loopback_variables(), **variables},
        stdin=job.lifeline.reading,
        pass_fds=handed_on,
    )


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Waits for all ranks; once one has failed, for the others only so long."""
    failed_s: float | None = None
    while any(rank.poll() is None for rank in ranks):
        if failed_s is None and any(rank.poll() for rank in ranks):
            failed_s = elapsed_s()
        grace_s = _GRACE_S if ranks[0].poll() is None else _GRACE_WITHOUT_FIRST_S
        if failed_s is not None and elapsed_s() - failed_s > grace_s:
            return
        sleep_s(_POLLED_EVERY_S)
