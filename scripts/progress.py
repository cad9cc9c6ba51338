"""Progress output of the scripts. Standard library only: they run before anything is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# Quiet for the first two seconds; then, without a terminal, one line every ten seconds.
_QUIET_S = 2.0
_PLAIN_EVERY_S = 10.0
_TICK_S = 0.5
_COLUMNS = 80


class Problem(Exception):
    """An error that the user can act on: what is wrong, why, and what to do."""

    def __init__(self, problem: str, *, fix: str, because: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.because = because
        self.fix = fix

    def text(self) -> str:
        """The error in three lines."""
        because = [f"  because: {self.because}"] if self.because else []
        return "\n".join([f"error: {self.problem}", *because, f"  fix: {self.fix}"])


@dataclass(frozen=True)
class Done:
    """A command's exit code and output."""

    exit_code: int
    output: str
    duration_s: float

    def last_error(self) -> str:
        """The line that most likely explains the failure."""
        # pip continues without an unreachable index, and then finds no distribution.
        _, broken, after = self.output.rpartition("connection broken by ")
        if broken:
            reason = after.splitlines()[0].rpartition(">: ")[2]
            return "no connection: " + reason.partition("')")[0]
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        return (errors or lines or [f"exit code {self.exit_code}"])[-1]


def say(label: str, text: str) -> None:
    """Prints a line with a label on the left."""
    print(f"{label:<10}{text}", flush=True)


def guarded(main: Callable[[list[str]], int]) -> int:
    """Runs a script's main function; a Problem or Ctrl-C ends it without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the console cannot show are replaced.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace", line_buffering=True)
    try:
        return main(sys.argv[1:])
    except Problem as problem:
        print(problem.text(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to continue", file=sys.stderr)
        return 130


def bytes_text(num_bytes: float) -> str:
    """Decimal multiples, as pip prints them: 210000000 -> "210 MB"."""
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"


def run_watched(
    label: str, title: str, argv: Sequence[str | Path], *, log: Path, cwd: Path
) -> Done:
    """Runs a command to completion, shows progress, and logs its output.

    Args:
        label, title: shown while it runs and when it has succeeded.
        argv: the command.
        log: file to append its output to.
        cwd: its working directory.
    """
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [str(part) for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        cwd=cwd,
        env=pip_environment(os.environ),
    )
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=_keep_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    line = _LiveLine(label, title)
    try:
        while process.poll() is None:
            line.show(time.monotonic() - started, _last_words(lines))
            time.sleep(_TICK_S if time.monotonic() - started > _TICK_S else 0.02)
    except KeyboardInterrupt:
        process.terminate()
        raise
    finally:
        line.clear()
    # A surviving grandchild may hold the pipe open: do not wait for its output.
    reader.join(timeout=5)
    done = Done(process.returncode, "".join(lines), time.monotonic() - started)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, argv))}\n{done.output}exit code {done.exit_code}\n\n")
    if done.exit_code == 0:
        say(label, f"{title}  ({done.duration_s:.1f} s)")
    return done


def pip_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables, without those that redirect pip or Python elsewhere."""
    kept = {
        name: value
        for name, value in variables.items()
        if name not in ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    }
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}


def _keep_lines(stream: IO[str], lines: list[str]) -> None:
    lines.extend(iter(stream.readline, ""))


def _last_words(lines: Sequence[str]) -> str:
    # pip draws progress bars between its messages.
    return next((line.strip() for line in reversed(lines) if line.strip()[:1].isalpha()), "")


class _LiveLine:
    """On a terminal, one line that is overwritten; elsewhere a plain line now and then."""

    def __init__(self, label: str, title: str) -> None:
        self._label = label
        self._title = title
        self._is_terminal = sys.stdout.isatty()
        self._is_shown = False
        self._next_at_s = _QUIET_S

    def show(self, elapsed_s: float, detail: str) -> None:
        if elapsed_s < self._next_at_s:
            return
        text = f"{self._label:<10}{self._title}  {elapsed_s:.0f} s  {detail}"
        if self._is_terminal:
            print(f"\r{text[: _COLUMNS - 1]:<{_COLUMNS - 1}}", end="", flush=True)
            self._is_shown = True
        else:
            print(text[:_COLUMNS], flush=True)
            self._next_at_s = elapsed_s + _PLAIN_EVERY_S

    def clear(self) -> None:
        if self._is_shown:
            print("\r" + " " * (_COLUMNS - 1) + "\r", end="", flush=True)
