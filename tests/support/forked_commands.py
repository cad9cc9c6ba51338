"""Runs of `flatout` that need not load it: children of a process that has."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.fork_server import CAN_FORK, ForkServer

PROGRAM = Path(__file__).resolve().parents[1] / "cases" / "cli" / "run_each.py"


class ForkedCommands:
    """Each command is a process with variables, a folder, streams and an end of its own.

    Args:
        source: the folder of the package `flatout`.
        environment: variables of the process that loads it. What Python reads at its start is
            the same in each command.
    """

    def __init__(self, source: str, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._server = ForkServer([sys.executable, "-P", str(PROGRAM), source], environment)

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Whether a command with these variables can be a child."""
        return CAN_FORK and _of_python(environment) == _of_python(self._environment)

    def run(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        missing: Sequence[str] = (),
        limit_s: float = 180.0,
        is_merged: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end; where it cannot be a child, as any other process.

        Args:
            arguments: of `flatout`.
            environment: all of its variables.
            folder: where it runs.
            missing: modules that it cannot import.
            limit_s: when it is killed, and TimeoutExpired is raised.
            is_merged: what it writes to stderr is in the same order in stdout.
        """
        if not self.can_run(environment):
            code = f"import sys; {without(missing)}from flatout.__main__ import main; main()"
            return subprocess.run(
                [sys.executable, "-P", "-c", code, *arguments], cwd=folder, env=dict(environment),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False,
                stderr=subprocess.STDOUT if is_merged else subprocess.PIPE, timeout=limit_s,
            )  # fmt: skip
        with tempfile.TemporaryDirectory() as place:
            out, err = (Path(place) / name for name in ("out", "err"))
            out.touch()
            err.touch()
            order = {
                "arguments": list(arguments), "environment": dict(environment),
                "folder": str(folder), "missing": list(missing), "stdout": str(out),
                "stderr": str(out if is_merged else err),
            }  # fmt: skip
            exit_code = int(self._server.ask(json.dumps(order), limit_s))
            return subprocess.CompletedProcess(
                list(arguments), exit_code, out.read_text("utf-8"), err.read_text("utf-8")
            )

    def close(self) -> None:
        """Ends the process that has loaded flatout."""
        self._server.close()


def without(packages: Sequence[str]) -> str:
    """Code after which they cannot be imported: Python marks modules it cannot find like that."""
    return "".join(f"sys.modules[{name!r}] = None; " for name in packages)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python reads when it starts."""
    names = ("LANG", "LC_", "PYTHON", "TZ")
    return {name: value for name, value in environment.items() if name.startswith(names)}
