"""The rendezvous: the store that one rank hosts, and the checks before training.

Wrong names, ports or versions are reported here, within seconds and by name: later,
ranks would only miss each other.
"""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from flatout import __version__
from flatout.engine.ranks.listen_socket import listening_socket
from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.ranks.wait_watchdog import REPORT_AFTER_S, late_ranks
from flatout.engine.runtime.stop_signals import TERMINATED, StoppedEarly, StopRequest
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import Finding
from flatout.system.clock import elapsed_s, sleep_s

# A container that is only starting has its name in a moment; a wrong one will never be known.
_NAME_LIMIT_S = 30.0
_POLL_EVERY_S = 1.0
_CHECK_EVERY_S = 0.1


def open_store(rank_env: RankEnv) -> Any:
    """torch.distributed's store, where ranks meet; made there by who keeps it.

    Raises:
        RunFailed: ranks-not-together, rendezvous-port-taken.
    """
    _require_address(rank_env)
    try:
        listening = listening_socket(rank_env.host, rank_env.port) if rank_env.keeps_store else None
        return TCPStore(
            rank_env.host,
            rank_env.port,
            rank_env.size,
            is_master=rank_env.keeps_store,
            timeout=timedelta(seconds=rank_env.limit_s),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listening,
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = f"{rank_env.host}:{rank_env.port}"
        if rank_env.keeps_store and is_port_taken(error):
            raise port_taken(f"rank {rank_env.rank}", where) from error
        raise not_together(
            f"rank {rank_env.rank} cannot reach {where}, where rank 0 waits.", str(error)
        ) from error


def is_port_taken(error: Exception) -> bool:
    """Whether an error says that another program listens at a port; torch has a text of its own."""
    return "in use" in str(error).lower()


def port_taken(who: str, address: str) -> RunFailed:
    """The error if rank 0 cannot listen at its port."""
    return RunFailed(
        "rendezvous-port-taken",
        f"{who} cannot listen at {address}: the port is in use.",
        because="another program took it after it was found free",
        fix="start the training again: it will use another port",
    )


def _require_address(rank_env: RankEnv) -> None:
    """Waits a while for a name to have an address: torch asks for as long as it may wait at all."""
    limit_s = min(rank_env.limit_s, _NAME_LIMIT_S)
    until_s = elapsed_s() + limit_s
    while True:
        try:
            socket.getaddrinfo(rank_env.host, None)
            return
        except OSError as error:
            if elapsed_s() > until_s:
                raise not_together(
                    f"rank {rank_env.rank} cannot resolve {rank_env.host}, where rank 0 waits.",
                    f"tried for {limit_s:g} s: {error.strerror or error}",
                ) from error
        sleep_s(_POLL_EVERY_S)


def await_words(
    store: Any,
    names: list[str],
    rank_env: RankEnv,
    report: Callable[[Finding], None],
    request: StopRequest,
) -> None:
    """Waits until these words are in the store, one per rank in order; reports long waits.

    Raises:
        RunFailed: ranks-not-together.
        StoppedEarly: the training must end. Rank 0 receives the request, unless each rank is
            terminated.
        RuntimeError: the host of the store is gone.
    """
    began_s, next_report_s = elapsed_s(), min(REPORT_AFTER_S, rank_env.limit_s)
    while not store.check(names):
        waited_s, reason = elapsed_s() - began_s, request.reason
        if reason is not None and (rank_env.is_first or reason == TERMINATED):
            raise StoppedEarly(reason)
        if waited_s > next_report_s:
            missing = [rank for rank, name in enumerate(names) if not store.check([name])]
            if waited_s > rank_env.limit_s:
                who = " and ".join(map(str, missing))
                raise not_together(
                    f"rank {who} of {rank_env.size} did not join within {rank_env.limit_s:g} s.",
                    None,
                )
            next_report_s = rank_env.limit_s
            report(late_ranks(missing, rank_env, waited_s))
        sleep_s(_CHECK_EVERY_S)


def not_together(problem: str, because: str | None) -> RunFailed:
    """The error for ranks that have not joined."""
    lines = (because or "").strip().splitlines()
    return RunFailed(
        "ranks-not-together",
        problem,
        because=lines[0] if lines else None,
        fix="see the log of each rank, worker.rankN.log; `flatout doctor` checks names and ports",
    )


def versions_here() -> str:
    """Versions that must be equal on all ranks, for the rendezvous."""
    major, minor, _ = platform.python_version_tuple()
    versions = {
        "flatout": __version__,
        "torch": str(torch.__version__).partition("+")[0],
        "Python": f"{major}.{minor}",
    }
    return json.dumps(versions)


def unlike(words: Sequence[str | bytes]) -> FlatoutError | None:
    """The difference between the ranks' versions; None if all have the same.

    Args:
        words: what each rank has laid down, by rank.
    """
    versions = [json.loads(word) for word in words]
    different = [
        f"{name} {of_first} on rank 0, {of_rank[name]} on rank {rank}"
        for rank, of_rank in enumerate(versions)
        for name, of_first in versions[0].items()
        if of_rank[name] != of_first
    ]
    if not different:
        return None
    return UsageError(
        "ranks-differ",
        "the ranks run different versions.",
        because="; ".join(different[:3]),
        fix="install the same on all machines: `flatout setup export` writes what one of them has",
    )
