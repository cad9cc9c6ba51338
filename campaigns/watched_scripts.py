"""`flatout watch` and `flatout profile --` on scripts that know nothing of flatout.

Result and exit code must be the same as without them, and Ctrl-C must reach the script; `watch` may
cost less than a hundredth of the time. What it costs is its own processor time, which other
programs do not change, and the difference of wall times in pairs, which they do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.controlling_terminal import ControllingTerminal
from support.dated import Measurement, measurement, read_machine, write_result

RESULTS = Path(__file__).with_name("results")
SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "watched"
# A script, and what it has printed when it trains.
STARTED = {
    "plain": b"epoch 1: loss", "with_lightning": b"Epoch 0", "with_accelerate": b"epoch 1: loss",
    "with_trainer": b"'loss'", "with_keras": b"Epoch 1/",
}  # fmt: skip
LIMIT_S = 900.0
# Of two threads that share a core with another program, one spins while it waits for the other.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
# Of the time of a script.
MOST_COST = 0.01


@dataclass(frozen=True)
class Done:
    """A script that has ended. final: its last line with a loss; cpu_s: with all it has started."""

    exit_code: int
    final: str
    took_s: float
    cpu_s: float
    stdout: str
    stderr: str


@dataclass
class Tried:
    """What was found about one script."""

    script: str
    final: str = ""
    faults: list[str] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)
    watched_s: list[float] = field(default_factory=list)
    own_cpu_s: list[float] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    split: dict[str, float] = field(default_factory=dict)
    interrupted: dict[str, int] = field(default_factory=dict)


def run(argv: Sequence[str]) -> Done:
    """Runs a program to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began_s = time.monotonic()
        process = subprocess.Popen(argv, stdout=out, stderr=err, env=ENVIRONMENT)
        _, status, used = os.wait4(process.pid, 0)
        took_s = time.monotonic() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    found = re.findall(r"final loss [-+.0-9e]+", texts[0])
    return Done(
        exit_code=process.returncode,
        final=found[-1] if found else "",
        took_s=took_s,
        cpu_s=used.ru_utime + used.ru_stime,
        stdout=texts[0],
        stderr=texts[1],
    )


class Attempt:
    """One script, tried in every way.

    Args:
        name: of the script.
        python: its interpreter.
        epochs: of the runs that are timed.
    """

    def __init__(self, name: str, python: str, epochs: int) -> None:
        self.tried = Tried(script=name)
        self._script = [python, str(SCRIPTS / f"{name}.py"), "--epochs"]
        self._epochs = str(epochs)

    def compare(self, pairs: int) -> None:
        """Runs it with and without `flatout watch`, in pairs whose order alternates."""
        for number in range(pairs):
            ways = [self._plain, self._watched]
            for way in ways if number % 2 == 0 else reversed(ways):
                way()

    def _plain(self) -> None:
        done = run([*self._script, self._epochs])
        self._same(done, "alone")
        self.tried.plain_s.append(done.took_s)

    def _watched(self) -> None:
        with tempfile.TemporaryDirectory(prefix="flatout-watched-") as folder:
            done = run([*flatout("watch", "--out", folder, "--"), *self._script, self._epochs])
            self._same(done, "watched")
            record = json.loads(Path(folder, "watch.json").read_text(encoding="utf-8"))
            log = Path(folder, "output.log").read_text(encoding="utf-8", errors="replace")
        if done.final not in log:
            self.tried.faults.append("the record lacks the final loss")
        self.tried.watched_s.append(done.took_s)
        self.tried.own_cpu_s.append(done.cpu_s - record["time"]["cpu_s"])

    def _same(self, done: Done, way: str) -> None:
        self.tried.final = self.tried.final or done.final
        if done.exit_code != 0 or not done.final or done.final != self.tried.final:
            self.tried.faults.append(
                f"{way}: exit code {done.exit_code}, {done.final or done.stderr[-300:]!r}"
            )

    def profile(self) -> None:
        """Runs it under `flatout profile --`."""
        done = run([*flatout("profile", "--json", "--"), *self._script, self._epochs])
        try:
            document = json.loads(done.stdout)
        except ValueError:
            self.tried.faults.append(f"profiled: {done.stdout[-300:]} {done.stderr[-300:]}")
            return
        profile = document["profile"]
        if self.tried.final not in done.stderr or done.exit_code != 0:
            self.tried.faults.append(f"profiled: another result, exit code {done.exit_code}")
        if profile is None:
            self.tried.faults.append(f"not profiled: {done.stderr[-400:]}")
            return
        self.tried.split = {
            one["part"]: one["seconds"] for one in profile["split"] if one["seconds"]
        }
        self.tried.advice = [f"{one['id']}: {one['fix']}" for one in profile["advice"]]

    def interrupt(self) -> None:
        """Presses Ctrl-C while it trains: alone, watched and profiled."""
        ways = {"alone": [], "watch": flatout("watch", "--"), "profile": flatout("profile", "--")}
        for way, words in ways.items():
            # The state of watched programs is not the person's.
            with tempfile.TemporaryDirectory(prefix="flatout-watched-") as state:
                environment = {**ENVIRONMENT, "TERM": "xterm-256color", "FLATOUT_STATE": state}
                argv = [*words, *self._script, "1000"]
                with ControllingTerminal(argv, environment) as terminal:
                    terminal.expect(STARTED[self.tried.script], LIMIT_S)
                    time.sleep(1.0)
                    terminal.type(b"\x03")
                    self.tried.interrupted[way] = terminal.finish(LIMIT_S)
        if len(set(self.tried.interrupted.values())) != 1:
            self.tried.faults.append(f"Ctrl-C: {self.tried.interrupted}")


def flatout(*words: str) -> list[str]:
    """A command of this flatout."""
    return [sys.executable, "-m", "flatout", *words]


def main() -> int:
    """Tries all scripts; 1 if anything was different, or too expensive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the scripts")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--only", choices=[*STARTED], action="append")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    # In the background of a shell, Ctrl-C is ignored, and programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = version_of(options.python)
    all_tried: list[Tried] = []
    measured: list[Measurement] = []
    for name in options.only or STARTED:
        attempt = Attempt(name, options.python, options.epochs)
        attempt.compare(options.pairs)
        attempt.profile()
        attempt.interrupt()
        all_tried.append(attempt.tried)
        measured += report(attempt.tried, {"epochs": options.epochs, "threads": 1})
        # After each, so that little is lost if it is interrupted.
        details = {"scripts": [asdict(one) for one in all_tried], "versions": found}
        path = write_result("watched-scripts", read_machine(), measured, details, options.out)
        print(path, flush=True)
    return int(any(one.faults for one in all_tried))


def report(tried: Tried, conditions: dict[str, Any]) -> list[Measurement]:
    """Prints what was found about a script, and gives its numbers."""
    shares = tuple(
        own_s / took_s for own_s, took_s in zip(tried.own_cpu_s, tried.watched_s, strict=True)
    )
    ratios = tuple(b / a for a, b in zip(tried.plain_s, tried.watched_s, strict=True))
    if min(shares) > MOST_COST:
        tried.faults.append(f"watching takes {min(shares):.2%} of the time")
    measured = [
        measurement(f"{tried.script}: processor time of flatout watch, of the time", "share",
                    shares, conditions),
        measurement(f"{tried.script}: watched, of alone", "ratio", ratios, conditions),
        measurement(f"{tried.script}: alone", "s", tuple(tried.plain_s), conditions),
    ]  # fmt: skip
    print(
        f"{tried.script:16} {tried.final:26} {measured[2].value:6.1f} s  own CPU "
        f"{measured[0].value:.2%}  wall x{measured[1].value:.3f}  Ctrl-C {tried.interrupted}  "
        f"{tried.faults or 'same'}"
    )
    for advice in tried.advice:
        print(f"    {advice}")
    return measured


def version_of(python: str) -> dict[str, str]:
    """The versions of what the scripts use."""
    code = (
        "import json, platform\nfrom importlib import metadata\n"
        "found = {'python': platform.python_version()}\n"
        "for name in ('torch', 'lightning', 'accelerate', 'transformers', 'keras'):\n"
        "    found[name] = metadata.version(name)\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
