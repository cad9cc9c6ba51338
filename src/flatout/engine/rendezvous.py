"""Where ranks meet: the store that one of them keeps, and what they make sure of before they train.

Whatever is wrong with a name, a port or a version is told here, in seconds and by its name: later,
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
from flatout.engine.listening import listening_socket
from flatout.engine.patience import TOLD_AFTER_S, late_ranks
from flatout.engine.place import Place
from flatout.engine.watch import TERMINATED, StoppedEarly, StopRequest
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.nouns.finding import Finding
from flatout.system.clock import elapsed_s, sleep_s

# A container that is only starting has its name in a moment; a wrong one will never be known.
_NAME_LIMIT_S = 30.0
_ASKED_EVERY_S = 1.0
_LOOKED_EVERY_S = 0.1


def open_store(place: Place) -> Any:
    """torch.distributed's store, where ranks meet; made there by who keeps it.

    Raises:
        RunFailed: ranks-not-together, rendezvous-port-taken.
    """
    _require_address(place)
    try:
        listening = listening_socket(place.host, place.port) if place.keeps_store else None
        return TCPStore(
            place.host,
            place.port,
            place.size,
            is_master=place.keeps_store,
            timeout=timedelta(seconds=place.limit_s),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listening,
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = f"{place.host}:{place.port}"
        if place.keeps_store and is_port_taken(error):
            raise port_taken(f"rank {place.rank}", where) from error
        raise not_together(
            f"rank {place.rank} cannot reach {where}, where rank 0 waits.", str(error)
        ) from error


def is_port_taken(error: Exception) -> bool:
    """Whether an error says that somebody else listens at a port; torch has a text of its own."""
    return "in use" in str(error).lower()


def port_taken(who: str, place: str) -> RunFailed:
    """Whoever was to wait for the others cannot listen at that place."""
    return RunFailed(
        "rendezvous-port-taken",
        f"{who} cannot wait for the others at {place}: the port is taken.",
        because="another program has taken it since it was found free",
        fix="start the training again: another port is found",
    )


def _require_address(place: Place) -> None:
    """Waits a while for a name to have an address: torch asks for as long as it may wait at all."""
    limit_s = min(place.limit_s, _NAME_LIMIT_S)
    until_s = elapsed_s() + limit_s
    while True:
        try:
            socket.getaddrinfo(place.host, None)
            return
        except OSError as error:
            if elapsed_s() > until_s:
                raise not_together(
                    f"rank {place.rank} finds no address for {place.host}, where rank 0 waits.",
                    f"asked for {limit_s:g} s: {error.strerror or error}",
                ) from error
        sleep_s(_ASKED_EVERY_S)


def await_words(
    store: Any,
    names: list[str],
    place: Place,
    tell: Callable[[Finding], None],
    request: StopRequest,
) -> None:
    """Waits until these words lie in the store, the one of each rank in order; tells it where that
    lasts.

    Raises:
        RunFailed: ranks-not-together.
        StoppedEarly: the training is to end. It is the first rank's to hear of it, unless each of
            them is ended.
        RuntimeError: whoever keeps the store has gone.
    """
    began_s, told_at_s = elapsed_s(), min(TOLD_AFTER_S, place.limit_s)
    while not store.check(names):
        waited_s, reason = elapsed_s() - began_s, request.reason
        if reason is not None and (place.is_first or reason == TERMINATED):
            raise StoppedEarly(reason)
        if waited_s > told_at_s:
            missing = [rank for rank, name in enumerate(names) if not store.check([name])]
            if waited_s > place.limit_s:
                who = " and ".join(map(str, missing))
                raise not_together(
                    f"rank {who} of {place.size} did not come within {place.limit_s:g} s.", None
                )
            told_at_s = place.limit_s
            tell(late_ranks(missing, place, waited_s))
        sleep_s(_LOOKED_EVERY_S)


def not_together(problem: str, because: str | None) -> RunFailed:
    """Ranks have not met."""
    lines = (because or "").strip().splitlines()
    return RunFailed(
        "ranks-not-together",
        problem,
        because=lines[0] if lines else None,
        fix="see the log of each rank, worker.rankN.log; `flatout doctor` looks at names and ports",
    )


def versions_here() -> str:
    """What must be the same on all ranks, to be laid down where they meet."""
    major, minor, _ = platform.python_version_tuple()
    versions = {
        "flatout": __version__,
        "torch": str(torch.__version__).partition("+")[0],
        "Python": f"{major}.{minor}",
    }
    return json.dumps(versions)


def unlike(words: Sequence[str | bytes]) -> FlatoutError | None:
    """What is wrong with the ranks' versions; None where all have the same.

    Args:
        words: what each rank has laid down, by rank.
    """
    told = [json.loads(word) for word in words]
    different = [
        f"{name} {of_first} on rank 0, {of_rank[name]} on rank {rank}"
        for rank, of_rank in enumerate(told)
        for name, of_first in told[0].items()
        if of_rank[name] != of_first
    ]
    if not different:
        return None
    return UsageError(
        "ranks-differ",
        "the ranks have different versions.",
        because="; ".join(different[:3]),
        fix="give all machines the same: `flatout setup export` writes what one of them has",
    )
