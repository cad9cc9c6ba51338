"""Ranks that need not load torch: children of a process that has."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.fork_server import ForkServer
from support.ranks_runs import failed_ranks, rank_environments, run_ranks

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = TESTS / "cases" / "ranks" / "run_each.py"


class ForkedRanks:
    """Each rank is a process with variables, a log and an end of its own, as with `run_ranks`."""

    def __init__(self) -> None:
        self._server = ForkServer([sys.executable, str(PROGRAM), str(TESTS)])

    def run(self, num_ranks: int, command: list[str], folder: Path, limit_s: float) -> None:
        """Runs a Python program once for each rank, to its end.

        Raises:
            RuntimeError: one of them has failed.
        """
        if not hasattr(os, "fork"):
            run_ranks(num_ranks, command, folder, limit_s)
            return
        folder.mkdir(parents=True, exist_ok=True)
        ranks = []
        for rank, environment in enumerate(rank_environments(num_ranks)):
            log = folder / f"rank{rank}.log"
            log.write_bytes(b"")
            ranks.append({"command": command, "environment": environment, "log": str(log)})
        codes: list[int] = json.loads(self._server.ask(json.dumps(ranks), limit_s))
        if any(codes):
            raise failed_ranks(codes, folder)

    def close(self) -> None:
        """Ends the process that has loaded torch."""
        self._server.close()
