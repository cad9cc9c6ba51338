"""Kills sweeps at random moments; compares pruning, Optuna by hand and Ray Tune.

    python campaigns/sweep.py [--trials 60] [--kills 5] [--seed 0] [--seeds 5] [--peers]

Kills: half of the trials are of `digits`, half of `charlm` (tiny), each by grid and by random
search. Every sweep is carried out once without kills, and once killed `--kills` times and resumed.
The targets are the command line, the worker, and the command line with the last line of
`trials.jsonl` cut off somewhere, as a kill in the midst of a write leaves it. Promised: every trial
is there once, with the same parameters and the same value, and the best is the same.

Pruning (`--seeds`): random search over `digits`, with and without the median pruner.

Peers (`--peers`): the same trials as a program for Optuna and as one for Ray Tune, both of which
run `flatout train` for each trial, and as a program for Optuna that trains in its own process. The
overhead of a trial is the time of the whole, without what the runs spent in training.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import sweep_peers
from killed_run import LIMIT_S, WITHOUT_PICTURES, end, victims_of
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
TARGETS = ("command line", "worker", "write")
# Long enough for a validation or two, short enough for many trials.
EXPERIMENTS = {
    "digits": (["digits", "--epochs", "3"], "lr=0.01..0.1"),
    "charlm": (
        ["charlm", "-s", "size=tiny", "-s", "samples=512", "--steps", "12"], "lr=1e-3..1e-2",
    ),
}  # fmt: skip


@dataclass
class Sweeps:
    """A state folder, and the sweeps in it. is_drawn: each sweep at its end, which takes long."""

    state: Path
    is_drawn: bool = True
    problems: list[str] = field(default_factory=list)

    def start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Starts `flatout sweep`; its output goes to a file."""
        self.state.mkdir(parents=True, exist_ok=True)
        program = ["-m", "flatout"] if self.is_drawn else ["-c", WITHOUT_PICTURES]
        with open(self.state / "output.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", *program, "sweep", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=environment(self.state),
            )  # fmt: skip

    def run(self, arguments: list[str]) -> float:
        """Carries out a sweep; gives the seconds it took."""
        began_s = time.perf_counter()
        code = self.start(arguments).wait()
        if code:
            output = (self.state / "output.log").read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"`flatout sweep {' '.join(arguments)}` failed:\n{output[-3000:]}")
        return time.perf_counter() - began_s

    def read(self, name: str) -> dict[str, Any]:
        """A sweep, as `flatout sweep show --json` has it."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "flatout", "sweep", "show", name, "--json"],
            env=environment(self.state), capture_output=True, check=True,
        )  # fmt: skip
        sweep: dict[str, Any] = json.loads(done.stdout)["sweep"]
        return sweep

    def training_s(self, name: str) -> float:
        """The time that the runs of a sweep spent in training."""
        return sum(one["duration_s"] or 0.0 for one in self.read(name)["trials"])


def environment(state: Path) -> dict[str, str]:
    """The variables of a command in a state folder of its own."""
    return {**os.environ, "FLATOUT_STATE": str(state), "PYTHONUTF8": "1"}


def arguments_of(experiment: str, sampler: str, num_trials: int, seed: int) -> list[str]:
    """A sweep of that many trials; of a grid, as many points."""
    words, lr = EXPERIMENTS[experiment]
    low, high = map(float, lr.partition("=")[2].split(".."))
    # Rounded up, the last point would be outside.
    step_size = math.floor((high - low) / (num_trials - 1) * 1e9) / 1e9
    step = f":step={step_size:.9f}" if sampler == "grid" else ":log"
    return [
        *words, "-s", lr + step, "--sampler", sampler, "--trials", str(num_trials),
        "--seed", str(seed), "--tune", "off", "--use", "device=cpu",
    ]  # fmt: skip


def killed(sweeps: Sweeps, arguments: list[str], whole_s: float, dice: random.Random,
           num_kills: int) -> list[str]:  # fmt: skip
    """Carries out a sweep, killed and resumed; gives what was killed."""
    done: list[str] = []
    process = sweeps.start([*arguments, "--name", "killed"])
    folder = sweeps.state / "sweeps" / "killed"
    targets = [TARGETS[number % len(TARGETS)] for number in range(num_kills)]
    dice.shuffle(targets)
    for target in targets:
        try:
            # On the average, the kills are spread over the whole sweep.
            code = process.wait(dice.uniform(0, 2 * whole_s / (num_kills + 1)))
            sweeps.problems += [f"ended with {code} before a kill"] if code else []
            break
        except subprocess.TimeoutExpired:
            pass
        victims = victims_of(process.pid, "worker" if target == "worker" else "command line")
        end(victims)
        done += [target] if victims else []
        if target == "worker":
            continue
        process.wait(LIMIT_S)
        if target == "write":
            cut_last_line(folder / "trials.jsonl", dice)
        if not (folder / "sweep.json").exists():
            process = sweeps.start([*arguments, "--name", "killed"])
        else:
            process = sweeps.start(["--resume", "killed"])
    code = process.wait()
    sweeps.problems += [f"ended with {code}"] if code else []
    return done


def cut_last_line(path: Path, dice: random.Random) -> None:
    """Leaves a beginning of the last line."""
    content = path.read_bytes() if path.exists() else b""
    start = content.rstrip(b"\n").rfind(b"\n") + 1
    if content:
        path.write_bytes(content[: dice.randint(start, len(content) - 1)])


def difference(sweeps: Sweeps, num_trials: int) -> str | None:
    """The difference between the killed sweep and the whole one, or None."""
    whole, other = sweeps.read("whole"), sweeps.read("killed")
    facts = ("trial", "parameters", "status", "value")
    rows = [[{name: one[name] for name in facts} for one in of["trials"]] for of in (whole, other)]
    if len(rows[1]) != num_trials:
        return f"{len(rows[1])} trials, not {num_trials}"
    if rows[0] != rows[1]:
        first = next(pair for pair in zip(*rows, strict=True) if pair[0] != pair[1])
        return f"a trial differs: {first}"
    lines = (Path(other["folder"]) / "trials.jsonl").read_text().splitlines()
    stands = [(line["status"], line["trial"]) for line in map(json.loads, lines)]
    if len(stands) != 2 * num_trials or len(set(stands)) != len(stands):
        return f"trials.jsonl has {len(stands)} lines for {num_trials} trials"
    runs = sorted(path.name for path in (sweeps.state / "runs").glob("killed-*"))
    if runs != sorted(one["run"] for one in other["trials"]):
        return f"the runs are {runs}"
    for run in runs:
        events = (sweeps.state / "runs" / run / "events.jsonl").read_text().splitlines()
        if sum(json.loads(line)["kind"] == "finished" for line in events) != 1:
            return f"{run} has finished more than once"
    return None if whole["best"] == other["best"] else "another trial is the best"


def attack(folder: Path, options: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """Kills every kind of sweep; gives what came of each, and how many differ."""
    results = []
    experiments = [name for name in options.experiments.split(",") if name]
    for experiment in experiments:
        for sampler in ("grid", "random"):
            sweeps = Sweeps(folder / f"{experiment}-{sampler}", is_drawn=False)
            num_trials = options.trials // len(experiments)
            dice = random.Random(f"{options.seed}/{experiment}/{sampler}")
            arguments = arguments_of(experiment, sampler, num_trials, options.seed)
            # Where other programs work, two threads would wait for each other.
            arguments += ["--use", "num_threads=1"]
            whole_s = sweeps.run([*arguments, "--name", "whole"])
            kills = killed(sweeps, arguments, whole_s, dice, options.kills)
            problem = "; ".join(sweeps.problems) or difference(sweeps, num_trials)
            print(f"{experiment:8}{sampler:8}{num_trials} trials, killed: {', '.join(kills)}; "
                  f"{problem or 'the same'}", flush=True)  # fmt: skip
            results.append({"experiment": experiment, "sampler": sampler, "kills": kills,
                            "whole_s": whole_s, "problem": problem})  # fmt: skip
    return results, sum(one["problem"] is not None for one in results)


def pruning(folder: Path, num_seeds: int, num_trials: int) -> list[dict[str, Any]]:
    """The same random search with and without a pruner, for some seeds."""
    results = []
    for seed in range(num_seeds):
        sweeps = Sweeps(folder / f"pruning-{seed}")
        arguments = arguments_of("digits", "random", num_trials, seed)
        arguments[arguments.index("--epochs") + 1] = "12"
        row: dict[str, Any] = {"seed": seed}
        for pruner in ("none", "median"):
            row[f"{pruner}_s"] = sweeps.run([*arguments, "--pruner", pruner, "--name", pruner])
            sweep = sweeps.read(pruner)
            row[f"{pruner}_best"] = sweep["trials"][sweep["best"] - 1]["value"]
        saved = 1 - row["median_s"] / row["none_s"]
        print(f"seed {seed}  pruned {saved:.0%} of the time; best {row['median_best']:.4f}, "
              f"{row['none_best']:.4f} without", flush=True)  # fmt: skip
        results.append(row | {"saved": saved})
    return results


def peers(folder: Path, num_trials: int) -> dict[str, float]:
    """The overhead of a trial, in seconds, by what drives the trials."""
    sweeps = Sweeps(folder / "peers")
    arguments = arguments_of("digits", "random", num_trials, 0)
    seconds = sweeps.run([*arguments, "--name", "ours"])
    overheads = {"flatout sweep": (seconds - sweeps.training_s("ours")) / num_trials}
    trials = [one["parameters"]["lr"] for one in sweeps.read("ours")["trials"]]
    for name, peer in sweep_peers.PEERS.items():
        taken = peer(
            sweeps.state.with_name(name.replace(" ", "-")), EXPERIMENTS["digits"][0], trials
        )
        if taken is None:
            print(f"{name}: skipped, it is not installed", flush=True)
            continue
        overheads[name] = (taken.whole_s - taken.training_s) / num_trials
    for name, overhead_s in overheads.items():
        print(f"{name:32}{overhead_s:6.2f} s overhead per trial", flush=True)
    return overheads


def main() -> int:
    """Carries out what is asked for, writes the result; 1 if a promise was broken."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    attacked, num_different = attack(folder, options)
    rows = pruning(folder, options.seeds, 20)
    overheads = peers(folder, 8) if options.peers else {}
    measurements = [
        Measurement(name="sweeps killed", value=len(attacked), unit="1"),
        Measurement(name="kills", value=sum(len(one["kills"]) for one in attacked), unit="1"),
        Measurement(name="the same after the kills", value=len(attacked) - num_different, unit="1"),
    ]
    if rows:
        saved = statistics.median(row["saved"] for row in rows)
        measurements.append(Measurement(name="time saved by pruning", value=saved, unit="share"))
    measurements += [
        Measurement(name=f"overhead per trial, {name}", value=value, unit="s")
        for name, value in overheads.items()
    ]
    details = {
        "seed": options.seed, "trials": options.trials, "sweeps": attacked, "pruning": rows,
        "versions": dated.versions("optuna", "ray"),
    }  # fmt: skip
    # Parts that are carried out one by one have files of their own.
    parts = ["sweep", *(["kills", *options.experiments.split(",")] if attacked else [])]
    parts += [*(["pruning"] if rows else []), *(["peers"] if overheads else [])]
    name = "-".join(parts)
    path = dated.write_result(name, dated.read_machine(), measurements, details, options.out)
    print(f"written   {path}")
    by_hand = overheads.get(sweep_peers.BY_HAND)
    is_slow = by_hand is not None and overheads["flatout sweep"] > 1.1 * by_hand
    if num_different:
        print(f"the sweeps are kept in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if num_different or is_slow else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=60, help="over all experiments")
    parser.add_argument("--experiments", default=",".join(EXPERIMENTS))
    parser.add_argument("--kills", type=int, default=5, help="of each sweep")
    parser.add_argument("--seed", type=int, default=0, help="seed of sweeps, targets and moments")
    parser.add_argument("--seeds", type=int, default=5, help="sweeps with and without a pruner")
    parser.add_argument("--peers", action="store_true", help="also Optuna by hand and Ray Tune")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
