"""The cause of a lost rank: the notice it has left, or that it left none."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import internal_error
from flatout.system.clock import elapsed_s, sleep_s

# How long the others have for saying why they left, once one of them is missed.
WORD_LIMIT_S = 5.0
_POLLED_EVERY_S = 0.1


class FailureNotices:
    """Failure notices that ranks leave for each other in the rendezvous store.

    Args:
        store: of the rendezvous; lost together with the process that keeps it.
        rank_env: which rank this is, of how many.
    """

    def __init__(self, store: Any, rank_env: RankEnv) -> None:
        self._store = store
        self._rank_env = rank_env
        self._others = [rank for rank in range(rank_env.size) if rank != rank_env.rank]

    def leave(self, error: BaseException) -> None:
        """Leaves word why this rank has to go."""
        # The store may be gone with rank 0: then no one is left to read the notice, and this rank
        # raises its own error anyway.
        with contextlib.suppress(RuntimeError):
            self._store.set(f"failed/{self._rank_env.rank}", word_of(error, self._rank_env.rank))

    def of_loss(self, error: RuntimeError) -> FlatoutError:
        """The error to raise when other ranks cannot be reached any more.

        Args:
            error: what torch.distributed says.
        """
        # The store is rank 0's, as a rule: where it does not answer, nor does rank 0.
        # Its RuntimeError says just that, and `silent` remains.
        silent = [0]
        with contextlib.suppress(RuntimeError):
            self._store.set(f"here-still/{self._rank_env.rank}", "1")
            until_s = elapsed_s() + WORD_LIMIT_S
            while elapsed_s() < until_s:
                for rank in self._others:
                    if self._has(f"failed/{rank}"):
                        return error_in(self._store.get(f"failed/{rank}"), rank)
                if all(self._has(f"here-still/{rank}") for rank in self._others):
                    break
                sleep_s(_POLLED_EVERY_S)
            silent = [rank for rank in self._others if not self._has(f"here-still/{rank}")]
        return self._lost(silent, str(error).strip())

    def _lost(self, silent: list[int], error_text: str) -> RunFailed:
        # The kernel says the first two, of a connection that leads nowhere; gloo says the third.
        signs = {
            "connection timed out": "cannot be reached",
            "no route to host": "cannot be reached",
            "timed out": f"has not answered for {self._rank_env.limit_s:g} s",
        }
        matches = [how for sign, how in signs.items() if sign in error_text.lower()]
        how = matches[0] if matches else "exited without an error message"
        who = " and ".join(map(str, silent)) or "?"
        return RunFailed(
            "rank-lost",
            f"rank {who} of {self._rank_env.size} {how}.",
            because=error_text.splitlines()[0] if error_text else None,
            fix="nothing is lost: resume the run, unless `flatout train` has already done so",
        )

    def _has(self, name: str) -> bool:
        return bool(self._store.check([name]))


def word_of(error: BaseException, rank: int) -> bytes:
    """A short text for the other ranks; this rank's own log has the traceback."""
    known = to_flatout_error(error) or RunFailed(
        "internal-error",
        internal_error(error).problem,
        fix=f"read its log, worker.rank{rank}.log" if rank else "read the run's worker.log",
    )
    return json.dumps(
        {
            "rule": known.rule,
            "problem": known.problem,
            "because": known.because,
            "fix": known.fix,
            "is_usage": isinstance(known, UsageError),
        }
    ).encode()


def error_in(word: bytes, rank: int) -> FlatoutError:
    """The error from another rank's notice, as raised on this one."""
    notice = json.loads(word)
    kind = UsageError if notice["is_usage"] else RunFailed
    problem = f"rank {rank}: {notice['problem']}"
    return kind(notice["rule"], problem, because=notice["because"], fix=notice["fix"])
