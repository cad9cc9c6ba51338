"""Whether two versions of flatout do the same: for a change that must not alter behaviour.

    python campaigns/compare_versions.py OLD NEW --cases FOLDER [--only PART ...] [--rounds 15]

OLD and NEW are checkouts, each with an environment in `.venv` that has the same torch.

explain: every `input.txt` below FOLDER, by the rules found, their severity and their certainty.
setup: every card of the tables on every system, by the choice of each framework. losses: every
built-in experiment for some updates, by the validation and the bits of the weights. times:
commands, in turn, as new over old. Texts are not compared. Exit code 1 if anything differs but the
times.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PARTS = ("explain", "setup", "losses", "times")
FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax")
SYSTEMS = ("linux", "wsl2", "windows")
NUM_UPDATES = 12
LIMIT_S = 1800.0
# Smaller sizes for those that take minutes for an update on a CPU.
SIZES = dict.fromkeys(("bert-large", "gpt3-small", "resnet50"), ["-s", "size=tiny"])
# Runs each command line in one process, so that 2,000 of them do not start Python 2,000 times.
_MANY = """
import contextlib, io, json, sys
from flatout.cli.main import run
for line in sys.stdin:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = run(json.loads(line))
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue()]), flush=True)
"""


class Version:
    """A checkout with its environment; what it writes goes into a home of its own."""

    def __init__(self, checkout: Path, home: Path) -> None:
        folder = checkout / ".venv" / ("Scripts" if os.name == "nt" else "bin")
        self.checkout = checkout
        self.python = folder / ("python.exe" if os.name == "nt" else "python")
        self.home = home
        home.mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "PYTHONPATH": str(checkout / "src"),
            "XDG_STATE_HOME": str(home / "state"),
            "OMP_NUM_THREADS": "2",
            "PYTHONHASHSEED": "0",
            "NO_COLOR": "1",
        }

    def answers(self, commands: Sequence[Sequence[str]]) -> list[tuple[Any, str]]:
        """Exit code and stdout of each command line."""
        done = subprocess.run(
            [self.python, "-c", _MANY],
            input="".join(json.dumps(list(command)) + "\n" for command in commands),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        if len(found) != len(commands):
            sys.exit(f"error: {self.checkout} ended after {len(found)} commands:\n{done.stderr}")
        return [(code, text) for code, text in found]

    def duration_s(self, command: Sequence[str]) -> float:
        """How long the command takes as a process of its own."""
        started = time.perf_counter()
        subprocess.run(
            [self.python, "-m", "flatout", *command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            # No timeout: with one, Python looks for the end only every 50 ms.
        )
        return time.perf_counter() - started

    def losses(self, name: str) -> list[dict[str, Any]] | str:
        """Validation and weights of a built-in after some updates; why there are none."""
        arguments = ["--tune", "off", "--seed", "3", "--steps", str(NUM_UPDATES), "--name", name]
        done = subprocess.run(
            [self.python, "-m", "flatout", "train", name, *SIZES.get(name, []), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        metrics = next(self.home.rglob(f"{name}/metrics.jsonl"), None)
        if metrics is None or done.returncode != 0:
            return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output"
        # Lines of progress are means over times that the clock decides; these are not.
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        found = [{"metrics": line["metrics"]} for line in lines if line["kind"] == "validated"]
        weights = (metrics.parent / "weights.safetensors").read_bytes()
        return [*found, {"weights": hashlib.sha256(weights).hexdigest()}]


def main() -> int:
    """Compares the parts asked for; 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = Version(options.old.resolve(), Path(folder) / "old")
        new = Version(options.new.resolve(), Path(folder) / "new")
        differences = 0
        if "explain" in options.only:
            differences += compare_explain(old, new, options.cases)
        if "setup" in options.only:
            differences += compare_setup(old, new)
        if "losses" in options.only:
            differences += compare_losses(old, new)
        if "times" in options.only:
            compare_times(old, new, options.cases, options.rounds)
    return 1 if differences else 0


def compare_explain(old: Version, new: Version, cases: Path) -> int:
    """The findings of every recorded failure."""
    inputs = sorted(cases.rglob("input.txt"))
    commands = [["explain", str(path), "--json"] for path in inputs]
    names = [path.parent.name for path in inputs]
    return _compared("explain", names, old.answers(commands), new.answers(commands), _findings)


def compare_setup(old: Version, new: Version) -> int:
    """The choice for every card on every system."""
    tables = old.checkout / "src/flatout/compat/gpus.toml"
    if not tables.exists():
        tables = next((old.checkout / "src").rglob("gpus.toml"))
    cards = tomllib.loads(tables.read_text(encoding="utf-8"))["cards"]
    commands = [
        ["setup", framework, "--for", name, "--os", system, "--offline", "--json"]
        for card in cards
        for name in card["names"]
        for system in SYSTEMS
        for framework in FRAMEWORKS
    ]
    names = [" ".join(command[1:6]) for command in commands]
    return _compared("setup", names, old.answers(commands), new.answers(commands), _choice)


def compare_losses(old: Version, new: Version) -> int:
    """Losses, metrics and weights of every built-in, bit by bit."""
    folder = new.checkout / "src/flatout/experiments"
    names = sorted(path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py"))
    num_different = num_trained = 0
    for name in names:
        one, other = old.losses(name), new.losses(name)
        if isinstance(one, str) or isinstance(other, str):
            why = one if isinstance(one, str) else other
            print(f"losses    {name}: not trained ({why})", flush=True)
            num_different += isinstance(one, str) != isinstance(other, str)
            continue
        num_trained += 1
        if one != other:
            num_different += 1
        text = "is the same" if one == other else f"differs: {one} became {other}"
        print(f"losses    {name} {text}", flush=True)
    print(
        f"losses    {num_trained} of {len(names)} built-ins trained for {NUM_UPDATES} updates:"
        f" {num_different} differ",
        flush=True,
    )
    return num_different


def compare_times(old: Version, new: Version, cases: Path, rounds: int) -> None:
    """How long commands take, in turn; the ratio's median and quartiles."""
    case = str(sorted(cases.rglob("input.txt"))[0])
    steps = ["--tune", "off", "--steps", "20"]
    commands: dict[str, Sequence[str]] = {
        "--help": ["--help"],
        "train --help": ["train", "--help"],
        "explain": ["explain", case],
        "doctor": ["doctor", "--json"],
        "setup --for": ["setup", "--for", "RTX 4090", "--offline"],
        "train digits": ["train", "digits", *steps],
    }
    for title, command in commands.items():
        pairs = list(_pairs(old, new, command, rounds))
        ratios = [ours / theirs for theirs, ours in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"times     {title}: {statistics.median(one for one, _ in pairs):.3f} s became"
            f" {statistics.median(one for _, one in pairs):.3f} s, x{middle:.3f}"
            f" [{low:.3f}, {high:.3f}]",
            flush=True,
        )


def _pairs(
    old: Version, new: Version, command: Sequence[str], rounds: int
) -> Iterator[tuple[float, float]]:
    """Durations of both; which of them is first is drawn. The first pair only warms caches."""
    order = random.Random(0)
    for count in range(rounds + 1):
        if order.random() < 0.5:
            theirs = old.duration_s(command)
            ours = new.duration_s(command)
        else:
            ours = new.duration_s(command)
            theirs = old.duration_s(command)
        if count:
            yield theirs, ours


def _compared(
    part: str,
    names: Sequence[str],
    olds: Sequence[tuple[Any, str]],
    news: Sequence[tuple[Any, str]],
    read: Any,
) -> int:
    num_different = 0
    for name, (old_code, old_text), (new_code, new_text) in zip(names, olds, news, strict=True):
        one, other = (old_code, read(old_text)), (new_code, read(new_text))
        if one != other:
            num_different += 1
            print(f"{part:10}{name} differs: {one} became {other}")
    num_fine = sum(code == 0 for code, _ in news)
    print(f"{part:10}{len(names)} compared, {num_fine} with exit code 0: {num_different} differ")
    return num_different


def _findings(text: str) -> list[tuple[Any, ...]]:
    found = json.loads(text) if text.strip() else {}
    return [
        (one["rule"], one["severity"], one["certainty"], len(one["evidence"]))
        for one in found.get("findings", [])
    ]


def _choice(text: str) -> Any:
    found = json.loads(text) if text.strip() else {}
    return found.get("choice"), found.get("rule") or found.get("see")


if __name__ == "__main__":
    sys.exit(main())
