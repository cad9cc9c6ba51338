"""Ranks, and other programs, that need not load torch: children of a process that has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.fork_server import CAN_FORK, ForkServer
from support.ranks_runs import RanksFailed, rank_environments, run_ranks

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = TESTS / "cases" / "ranks" / "run_each.py"


class ForkedRanks:
    """Each rank is a process with variables, a log and an end of its own, as with `run_ranks`.

    Args:
        modules: more to import in advance.
    """

    def __init__(self, *modules: str) -> None:
        # As they are now: not as the first test sets them.
        environment = dict(os.environ)
        self._server = ForkServer([sys.executable, str(PROGRAM), str(TESTS), *modules], environment)

    def run(self, num_ranks: int, command: list[str], folder: Path, limit_s: float) -> None:
        """Runs a Python program once for each rank, to its end.

        Raises:
            RanksFailed: one of them has failed.
        """
        if not CAN_FORK:
            run_ranks(num_ranks, command, folder, limit_s)
            return
        folder.mkdir(parents=True, exist_ok=True)
        logs = [folder / f"rank{rank}.log" for rank in range(num_ranks)]
        codes = self._codes(command, rank_environments(num_ranks), logs, limit_s)
        if any(codes):
            raise RanksFailed(codes, folder)

    def run_alone(
        self, command: list[str], environment: Mapping[str, str], log: Path, *, limit_s: float,
        folder: Path | None = None,
    ) -> int:  # fmt: skip
        """Runs a Python program, or a module after `-m`, to its end.

        Args:
            command: the words after `python`.
            environment: all of its variables. What torch reads when it is imported is the same in
                each program.
            log: gets all that it prints.
            limit_s: when it is killed, and TimeoutExpired is raised.
            folder: where it runs; None: here.

        Returns:
            Its exit code, below zero for a signal.
        """
        if CAN_FORK:
            return self._codes(command, [environment], [log], limit_s, folder)[0]
        return run_fresh(command, environment, log, limit_s=limit_s, folder=folder)

    def _codes(
        self, command: list[str], environments: Sequence[Mapping[str, str]], logs: Sequence[Path],
        limit_s: float, folder: Path | None = None,
    ) -> list[int]:  # fmt: skip
        ranks = []
        for environment, log in zip(environments, logs, strict=True):
            log.write_bytes(b"")
            ranks.append({
                "command": command, "environment": dict(environment), "log": str(log),
                "folder": str(folder or Path.cwd()),
            })  # fmt: skip
        codes: list[int] = json.loads(self._server.ask(json.dumps(ranks), limit_s))
        return codes

    def close(self) -> None:
        """Ends the process that has loaded torch."""
        self._server.close()


def run_fresh(
    command: list[str], environment: Mapping[str, str], log: Path, *, limit_s: float,
    folder: Path | None = None,
) -> int:  # fmt: skip
    """Runs a Python program in a process that shares nothing; see `ForkedRanks.run_alone`."""
    with open(log, "wb") as file:
        return subprocess.run(
            [sys.executable, *command], env=dict(environment), stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT, timeout=limit_s, check=False, cwd=folder,
        ).returncode  # fmt: skip
