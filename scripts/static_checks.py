"""The static checks: lint, format, types for Linux and Windows, and who imports whom."""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checkout import ROOT
from progress import say

_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"
# Longest first. Each platform has its own cache, which the other would overwrite.
CHECKS = {
    "types": ["-m", "mypy", "--cache-dir", ".mypy_cache/here"],
    "types on Windows": ["-m", "mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/windows"],
    "imports": ["-c", _IMPORTS],
    "lint": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "--quiet", "."],
}


def run_checks(python: Path) -> list[str]:
    """Runs all checks, shows each with its duration, and returns the names of those that failed."""
    failed = []
    # Two at a time, since none uses more than one core for long.
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(lambda arguments: _run_timed([python, *arguments]), CHECKS.values())
        for name, (done, duration_s) in zip(CHECKS, found, strict=True):
            say("ok" if done.returncode == 0 else "FAILED", f"{name}  ({duration_s:.1f} s)")
            if done.returncode != 0:
                failed.append(name)
                print(f"{done.stdout.rstrip()}\n", flush=True)
    return failed


def _run_timed(argv: list[str | Path]) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return done, time.monotonic() - started
