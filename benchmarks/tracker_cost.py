"""How much a tracker slows a training down, also one that hangs, refuses or fills its disk.

    python benchmarks/tracker_cost.py [--models mlp,mnist] [--rounds 4] [--turns 2] [--seconds 4]

In each fresh process, the same training is repeated without a tracker and with each kind: MLflow to
files, to a server that accepts connections and never answers, to a server that refuses them, to a
disk that it fills (a small one if it can be mounted, which takes root; else a database on
/dev/full), and Weights & Biases offline. They take turns, and each turn begins with another.
Measured are milliseconds per step, validations included. What the process that sends takes from the
training is in them, since it runs on the same machine; its CPU time is printed as well. Trainings
are short, so its start, which takes most, is in each. The goal: with 95 % certainty a step takes at
most 1.01 x as long. Before that, `flatout train` runs once with each, and must end with exit code
0. Needs a quiet machine, mlflow and wandb.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import psutil
from disturbance import Disturbance
from support import dated
from support.small_disk import can_be_mounted, small_disk

from flatout.system.kill_tree import kill_tree
from flatout.tune.statistics import speedup

HERE = Path(__file__).resolve().parent
GOAL = 1.01
ALONE = "no tracker"
MODELS = ("mlp", "mnist")
# So small that MLflow fills it with what it writes at first.
_DISK = "256k"


def main() -> int:
    """Measures, prints a table, writes the result; 1 if a step may be slower, or a run failed."""
    options = _options()
    # Also when it is ended, its small disk is unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    measurements, details, is_reached = [], {}, True
    with tempfile.TemporaryDirectory() as name, trackers(Path(name)) as tracks:
        folder = Path(name)
        codes = exit_codes(tracks, folder)
        failed = [way for way, code in codes.items() if code]
        for way in failed:
            print(f"failed    {way}: `flatout train` ended with {codes[way]}")
        for model in options.models:
            with Disturbance() as others:
                turns: list[dict[str, Any]] = []
                for number in range(options.rounds):
                    turns += in_a_process(model, number, tracks, folder, options)
            print(f"{model:12}others used {others.share:.2f} CPUs")
            for way in tracks:
                is_reached &= _reported(way, turns)
                ms, cpus = (tuple(turn[way][what] for turn in turns) for what in ("ms", "cpus"))
                conditions = {"model": model, "tracker": way}
                measurements += [
                    dated.measurement(f"{model}: {way}", "ms", ms, conditions),
                    dated.measurement(f"{model}: {way}, its process", "CPUs", cpus, conditions),
                ]
            details[model] = {"others_cpus": others.share}
    details |= {"exit codes": codes, "versions": dated.versions("mlflow", "wandb")}
    path = dated.write_result("tracker-cost", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 0 if is_reached and not failed else 1


def _reported(way: str, turns: list[dict[str, Any]]) -> bool:
    """Prints a row; whether a step takes at most as long as it may."""
    ms, alone_ms = ([turn[one]["ms"] for turn in turns] for one in (way, ALONE))
    row = f"  {way:28}{statistics.median(ms):10.3f} ms"
    if way == ALONE:
        print(row, flush=True)
        return True
    faster = speedup(list(zip(alone_ms, ms, strict=True)))
    longest = 1 / faster.low
    cpus = statistics.median(turn[way]["cpus"] for turn in turns)
    row += f"   {1 / faster.middle:.4f} [{1 / faster.high:.4f}, {longest:.4f}] x"
    row += f"   its process {cpus:.2f} CPUs"
    print(row + ("" if longest <= GOAL else "   above the goal"), flush=True)
    return longest <= GOAL


@contextlib.contextmanager
def trackers(folder: Path) -> Iterator[dict[str, str]]:
    """What `--track` takes, by what kind of tracker that is; without one it is `none`."""
    found = {ALONE: "none"}
    with contextlib.ExitStack() as stack:
        hanging, refusing = (stack.enter_context(socket.socket()) for _ in range(2))
        for one in (hanging, refusing):
            one.bind(("127.0.0.1", 0))
        # The kernel accepts connections, and nothing ever reads them.
        hanging.listen(64)
        if can_be_mounted():
            disk = str(stack.enter_context(small_disk(folder / "full", _DISK)))
        else:
            (folder / "full.db").symlink_to("/dev/full")
            disk = f"sqlite:///{folder / 'full.db'}"
        if find_spec("mlflow"):
            found |= {
                "mlflow, files": f"mlflow:{folder / 'files'}",
                "mlflow, server hangs": f"mlflow:{_address(hanging)}",
                "mlflow, server refuses": f"mlflow:{_address(refusing)}",
                "mlflow, disk full": f"mlflow:{disk}",
            }
        if find_spec("wandb"):
            found["wandb, offline"] = "wandb:offline"
        if len(found) == 1:
            sys.exit("needs mlflow or wandb")
        yield found


def _address(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def exit_codes(tracks: dict[str, str], folder: Path) -> dict[str, int]:
    """The exit code of `flatout train` with each tracker, all of them at once."""
    started = {
        way: subprocess.Popen(
            [sys.executable, "-P", "-m", "flatout", "train", "digits", "--epochs", "2", "--tune",
             "off", "--use", "device=cpu", "--track", track, "--name", f"code-{number}"],
            cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for number, (way, track) in enumerate(tracks.items())
    }  # fmt: skip
    codes = {way: process.wait() for way, process in started.items()}
    # Those whose tracker does not answer go on for a while.
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "flatout.runs.tracking" in words and words[-1].startswith(str(folder)):
            kill_tree(process.pid)
    return codes


def in_a_process(
    model: str, number: int, tracks: dict[str, str], folder: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Of each turn in a fresh process, the milliseconds per step by kind of tracker."""
    job = {
        "model": model, "tracks": tracks, "seconds": options.seconds, "turns": options.turns,
        "shift": number * options.turns, "is_first": number == 0,
        # Of what the trainings before have written there.
        "emptied": [str(folder / "files"), str(folder / "full")],
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "tracker_cost_child.py"), json.dumps(job)],
        cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{model} failed:\n{done.stdout}{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("MLFLOW_", "WANDB_"))}  # fmt: skip
    return kept | {"FLATOUT_STATE": str(folder / "state")}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="some of: mlp, mnist")
    parser.add_argument("--rounds", type=int, default=4, help="fresh processes of each model")
    parser.add_argument("--turns", type=int, default=2, help="in each process")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each training")
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", help="output folder (default: results)"
    )
    options = parser.parse_args()
    options.models = options.models.split(",")
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if options.rounds * options.turns < 2:
        sys.exit("an interval needs two turns at least")
    return options


if __name__ == "__main__":
    sys.exit(main())
