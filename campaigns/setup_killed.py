"""Kills `flatout setup` at random moments and runs it again: environments are complete or absent.

The index is a folder of small fake wheels, so that flatout is tested, not the network.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import measurement, read_machine, write_result
from support.fake_index import make_index

RESULTS = Path(__file__).with_name("results")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SETUP = ("setup", "jax", "--cpu", "--yes", "--python", PYTHON)
REMOVE = ("setup", "--remove", "jax", "--yes")


class Home:
    """flatout with folders and an index of its own."""

    def __init__(self, folder: Path, manager: str) -> None:
        self._setup = (*SETUP, "--manager", manager)
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
            "HOME": str(folder), "FLATOUT_ENVIRONMENTS": str(folder / "environments"),
            "FLATOUT_CACHE": str(folder / "cache"), "UV_CACHE_DIR": str(folder / "uv"),
            "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": make_index(folder),
        }  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "flatout", *(words or self._setup)], env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        process = self.start(*words)
        stdout, stderr = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def faults(self) -> list[str]:
        """What is wrong after a kill, and after the next run."""
        found = []
        for one in json.loads(self.run("envs", "--json").stdout):
            if not Path(one["folder"], "requirements.lock").exists():
                found.append("an environment without a lock is listed")
        again = self.run()
        if again.returncode != 0:
            found.append(f"the next run exited with {again.returncode}: {again.stderr[-300:]}")
        left = {path.name for path in (self._folder / "environments").iterdir()}
        if left != {".lock", "jax"}:
            found.append(f"the folder holds {sorted(left)}")
        return found


def main() -> int:
    """Kills it that many times; 1 if anything was incomplete afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--manager", choices=["uv", "pip"], default="uv")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    dice = random.Random(options.seed)
    killed: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="flatout-killed-") as folder:
        home = Home(Path(folder), options.manager)
        began = time.perf_counter()
        first = home.run()
        whole_s = time.perf_counter() - began
        if first.returncode != 0:
            sys.exit(first.stderr)
        for number in range(options.kills):
            home.run(*REMOVE)
            process = home.start()
            at_s = dice.uniform(0.05, 1.0) * whole_s
            time.sleep(at_s)
            # Only the command line: its children continue, as after a real kill -9.
            was_running = process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed.append({"at_s": at_s, "was_running": was_running, "faults": home.faults()})
            print(f"{number + 1:3}  killed after {at_s:5.2f} s  {killed[-1]['faults'] or 'whole'}")
    bad = [one for one in killed if one["faults"]]
    print(f"{len(killed)} kills, {len(killed) - len(bad)} times complete")
    moments = tuple(one["at_s"] for one in killed)
    conditions = {
        "manager": options.manager,
        "whole_s": whole_s,
        "num_whole": len(killed) - len(bad),
    }
    path = write_result("setup-killed", read_machine(),
                        [measurement("killed after", "s", moments, conditions)],
                        {"kills": killed}, options.out)  # fmt: skip
    print(path)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
