"""`flatout` with folders and an index of its own, for tests that create environments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.fake_index import make_index
from support.forked_commands import ForkedCommands

SRC = str(Path(__file__).resolve().parents[2] / "src")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Home:
    """`flatout` with folders and an index of its own.

    forked: runs what need not load flatout first.
    """

    def __init__(self, folder: Path, forked: ForkedCommands | None = None) -> None:
        self.folder = folder
        self._forked = forked
        self.index = make_index(folder)
        self.environments = folder / "environments"
        self.cache = folder / "cache"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("PIP_", "UV_", "XDG_"))}  # fmt: skip
        return {
            **kept, "PYTHONPATH": SRC, "HOME": str(self.folder), "USERPROFILE": str(self.folder),
            "LOCALAPPDATA": str(self.folder), "FLATOUT_ENVIRONMENTS": str(self.environments),
            "FLATOUT_CACHE": str(self.cache), "FLATOUT_STATE": str(self.folder / "state"),
            "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index, "PIP_NO_CACHE_DIR": "1",
            # Five would wait for ten seconds between them.
            "PIP_RETRIES": "1",
            **more,
        }  # fmt: skip

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "flatout", *words], env=self.environment(**more),
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment(**more)
        if self._forked is not None and self._forked.can_run(environment):
            return self._forked.run(
                words, environment=environment, folder=self.folder, limit_s=120.0
            )
        process = self.start(*words, **more)
        stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def set_up(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Creates the JAX environment with pip, which every Python of the tests has."""
        return self.run("setup", *(words or ("jax",)), *SETTINGS, **more)

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("envs", "--json").stdout)
        return found


SETTINGS = ("--cpu", "--yes", "--python", PYTHON, "--manager", "pip")


def rule_of(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.rpartition("  see: ")[2].split()[-1]
