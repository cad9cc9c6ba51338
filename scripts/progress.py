"""What the scripts say while they work. Standard library only: they run before all else."""

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

# Quiet for the first two seconds; then, without a terminal, a line every ten.
_QUIET_S = 2.0
_PLAIN_EVERY_S = 10.0
_TICK_S = 0.5
_COLUMNS = 80


class Problem(Exception):
    """Bad news as a person can act on it: what is wrong, why, and what to do."""

    def __init__(self, problem: str, *, fix: str, because: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.because = because
        self.fix = fix

    def text(self) -> str:
        """The problem in the three lines that all problems have here."""
        because = [f"  because: {self.because}"] if self.because else []
        return "\n".join([f"error: {self.problem}", *because, f"  fix: {self.fix}"])


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    exit_code: int
    output: str
    duration_s: float

    def last_error(self) -> str:
        """The line that most likely tells why it failed."""
        # pip goes on without an index it cannot reach, and then finds no distribution.
        _, broken, after = self.output.rpartition("connection broken by ")
        if broken:
            reason = after.splitlines()[0].rpartition(">: ")[2]
            return "no connection: " + reason.partition("')")[0]
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        return (errors or lines or [f"exit code {self.exit_code}"])[-1]


def say(label: str, text: str) -> None:
    """A line with its label at the left."""
    print(f"{label:<10}{text}", flush=True)


def guarded(main: Callable[[list[str]], int]) -> int:
    """Runs a script's main function; bad news and Ctrl-C end it without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A console that cannot show a sign shows another one instead of failing.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace", line_buffering=True)
    try:
        return main(sys.argv[1:])
    except Problem as problem:
        print(problem.text(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to go on", file=sys.stderr)
        return 130


def bytes_text(num_bytes: float) -> str:
    """Decimal multiples, as pip prints them: 210000000 -> "210 MB"."""
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"


def run_watched(
    label: str, title: str, argv: Sequence[str | Path], *, log: Path, cwd: Path
) -> Done:
    """Runs a command to its end, shows that it is alive, and keeps what it prints.

    Args:
        label, title: what is shown while it runs and when it has ended well.
        argv: the command.
        log: its output is appended there.
        cwd: folder it runs in.
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
    # A grandchild that lives on may hold the pipe open: what it prints is not waited for.
    reader.join(timeout=5)
    done = Done(process.returncode, "".join(lines), time.monotonic() - started)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, argv))}\n{done.output}exit code {done.exit_code}\n\n")
    if done.exit_code == 0:
        say(label, f"{title}  ({done.duration_s:.1f} s)")
    return done


def pip_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would make pip or Python work on another one than ours."""
    kept = {
        name: value
        for name, value in variables.items()
        if name not in ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    }
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}


def _keep_lines(stream: IO[str], lines: list[str]) -> None:
    lines.extend(iter(stream.readline, ""))


def _last_words(lines: Sequence[str]) -> str:
    # pip draws its bars between the lines that say something.
    return next((line.strip() for line in reversed(lines) if line.strip()[:1].isalpha()), "")


class _LiveLine:
    """On a terminal one line that is written over; elsewhere a plain line now and then."""

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
