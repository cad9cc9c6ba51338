"""Ranks as child processes on this machine, with nothing between them and flatout."""

from __future__ import annotations

import os
import socket
import subprocess

from flatout.engine.launch.job import RankJob, log_refusal, rank_variables, say
from flatout.engine.ranks.listen_socket import handed_on
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.placement import ending_code
from flatout.system.clock import sleep_s
from flatout.system.process_env import loopback_variables
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.shutdown_grace import ShutdownGrace

_LOOPBACK = "127.0.0.1"
_POLLED_EVERY_S = 0.05


def launch(job: RankJob) -> int:
    """Starts the ranks, waits until all have ended, and gives the launcher's exit code."""
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        grace = ShutdownGrace(RunFolder(job.folder))
        _start_all(job, ranks)
        while len(codes := _codes(ranks)) < len(ranks) and not grace.is_over(codes):
            sleep_s(_POLLED_EVERY_S)
    except FlatoutError as error:
        _end(ranks)
        return log_refusal(job, error)
    finally:
        _end(ranks)
    codes = _codes(ranks)
    for number, code in codes.items():
        if code:
            say(f"rank {number} of {job.num_ranks} exited with code {code}")
    return ending_code(codes)


def _start_all(job: RankJob, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Starts one after the other.

    Raises:
        RunFailed: ranks-not-placed.
    """
    try:
        # Taken here, and passed to rank 0: found free, it could be taken until that one has
        # started.
        with socket.create_server((_LOOPBACK, 0)) as listening:
            for rank in range(job.num_ranks):
                ranks.append(_start(job, rank, listening))
    except OSError as error:
        raise RunFailed(
            "ranks-not-placed",
            f"rank {len(ranks)} of {job.num_ranks} could not be started.",
            because=error.strerror or str(error),
            fix="use fewer ranks; or allow this user more processes and open files (ulimit)",
        ) from error


def _start(job: RankJob, rank: int, listening: socket.socket) -> subprocess.Popen[bytes]:
    rendezvous = _LOOPBACK, int(listening.getsockname()[1])
    variables = rank_variables(
        rank, job.num_ranks, local_rank=rank, num_local=job.num_ranks, rendezvous=rendezvous
    )
    given, files = handed_on(listening) if rank == 0 else ({}, ())
    # In this process's group: ending the group ends them, too.
    return subprocess.Popen(
        job.command(),
        env={**os.environ, **loopback_variables(), **variables, **given},
        stdin=job.lifeline.reading,
        pass_fds=files,
    )


def _codes(ranks: list[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Exit codes of the ranks, by their numbers."""
    codes = {number: rank.poll() for number, rank in enumerate(ranks)}
    return {number: code for number, code in codes.items() if code is not None}


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()
