"""A process that has loaded what takes long, and does what it is asked in children of its own."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Mapping, Sequence

from flatout.system.kill_tree import kill_tree

# On macOS, what torch has loaded does not survive a fork.
CAN_FORK = sys.platform == "linux"


class ForkServer:
    """Started by the first order. It reads orders as lines, and answers each with a line.

    Args:
        command: starts it.
        environment: its variables; None leaves ours.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = list(command)
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, order: str, limit_s: float) -> str:
        """Its answer to an order.

        Raises:
            TimeoutExpired: it has taken too long, and was killed with its children.
            RuntimeError: it has ended.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        print(order, file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        if not ready:
            self.close()
            raise subprocess.TimeoutExpired(self._command, limit_s)
        answer = self._process.stdout.readline()
        if not answer:
            self._process.communicate()
            exit_code, self._process = self._process.returncode, None
            raise RuntimeError(f"{self._command} has ended with {exit_code}")
        return answer

    def close(self) -> None:
        """Ends it, and what it may be doing."""
        if self._process is not None:
            kill_tree(self._process.pid)
            self._process.communicate()
            self._process = None
