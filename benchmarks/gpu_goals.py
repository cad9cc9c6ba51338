"""The goals that need a GPU: flatout's recipe compared with other tools, in the same run.

    python benchmarks/gpu_goals.py --device cuda [--part resnet50] [--rounds 3] [--minutes 9.5]
    python benchmarks/gpu_goals.py --device cpu --quick

For each model, `flatout tune` finds a recipe first; then contestants take turns, each measurement
in a fresh process: flatout's loop with the recipe, the plain eager loop in fp32, that loop in bf16
with torch.compile's `max-autotune`, Accelerate, Lightning, and pytorch-autotune if it is installed.
Speeds are of steady steps: data, forward, backward, optimizer and the device's work included,
compiling and searching excluded. What does not fit or run is reported. A part takes at most
`--minutes`, with fewer rounds and a shorter search if necessary; a goal that is a multiple of
another row's speed has that row measured, too. `--quick` uses tiny sizes, also on a CPU, and judges
no goal. Accuracy is measured by gpu_accuracy.py, bit-identical results by tests/gpu.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.schema.machine import Machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
# Those that decide come first: compiling can take what is left of the time.
CONTESTANTS = ("flatout", "plain", "max-autotune", "accelerate", "lightning", "pytorch-autotune")
_PACKAGES = {
    "accelerate": "accelerate", "lightning": "lightning", "pytorch-autotune": "pytorch_autotune",
}  # fmt: skip
# Each measurement makes about so many seconds of updates; a search takes at most so many, or that
# share of its part, and with its start and end no more than twice that.
_MEASURED_S, _SEARCH_S, _SEARCH_SHARE = 3.0, 150, 0.25


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The goal of a model.

    per_sample: units per sample, such as tokens. at_least: units per second. times_plain: multiple
    of the plain loop's speed. times_row: multiple of flatout's speed in another row. step_s:
    maximum time of a step. run_samples, run_s: so many samples at that speed, in at most so many
    seconds.
    """

    unit: str
    settings: dict[str, Any] = field(default_factory=dict)
    numerics: str = "default"
    per_sample: int = 1
    at_least: float | None = None
    times_plain: float | None = None
    times_row: tuple[float, str] | None = None
    step_s: float | None = None
    run_samples: int = 0
    run_s: float | None = None

    def missed(
        self, samples_per_s: float, batch_size: int, others_per_s: Mapping[str, float]
    ) -> list[str]:
        """The parts of it that are not reached; empty if it is reached.

        Args:
            samples_per_s: of flatout.
            batch_size: samples per step.
            others_per_s: samples per second of `plain`, and of flatout in other rows.
        """
        found = []
        plain_per_s = others_per_s.get("plain")
        if self.at_least is not None and samples_per_s * self.per_sample < self.at_least:
            found.append(f"at least {self.at_least:,.0f} {self.unit}/s")
        if self.times_plain is not None and (
            plain_per_s is None or samples_per_s < self.times_plain * plain_per_s
        ):
            found.append(f"{self.times_plain:g} x the plain loop")
        if self.times_row is not None:
            factor, row = self.times_row
            other = others_per_s.get(row)
            if other is None or samples_per_s < factor * other:
                found.append(f"{factor:g} x {row}")
        if self.step_s is not None and batch_size / samples_per_s > self.step_s:
            found.append(f"a step in {1e6 * self.step_s:.0f} us")
        if self.run_s is not None and self.run_samples / samples_per_s > self.run_s:
            found.append(f"{self.run_samples:,} samples in {self.run_s:g} s")
        return found


# From the project's goals; those of an H200 are named where they are judged.
GOALS: dict[str, tuple[str, Goal]] = {
    "mlp": ("mlp", Goal(unit="rows", times_plain=10, step_s=25e-6)),
    "mnist-large-fp32": (
        "mnist-large",
        Goal(unit="images", numerics="strict", run_samples=14 * 60_000, run_s=45),
    ),
    "mnist-large": ("mnist-large", Goal(unit="images", run_samples=14 * 60_000, run_s=8)),
    "gpt3-small": (
        "gpt3-small",
        Goal(
            unit="tokens", settings={"batch_size": 16}, per_sample=1024,
            at_least=468_000, times_plain=11,
        ),
    ),
    "resnet50": (
        "resnet50", Goal(unit="images", settings={"batch_size": 256}, at_least=5_000),
    ),
    "bert-large": (
        "bert-large", Goal(unit="sequences", settings={"batch_size": 64}, at_least=500),
    ),
    "bert-large-unpadded": (
        "bert-large",
        Goal(
            unit="sequences",
            settings={"batch_size": 64, "padded": False},
            times_row=(1.8, "bert-large"),
        ),
    ),
}  # fmt: skip

# scripts/gpu runs them one by one, in this order: where the time is short, the last are left.
PARTS = (
    "mlp", "gpt3-small", "resnet50", "mnist-large", "bert-large", "bert-large-unpadded",
    "mnist-large-fp32",
)  # fmt: skip


def main() -> int:
    """Measures, prints a table, writes the result; 1 if a goal that was judged is missed."""
    options = _options()
    if options.child:
        print(json.dumps(_measured_here(json.loads(options.child))))
        return 0
    contestants = [name for name in CONTESTANTS if _is_here(name, options)]
    rows: list[dict[str, Any]] = []
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}\n")
    reached: dict[str, float] = {}
    for part in [options.part] if options.part else PARTS:
        # What is under way then is ended.
        deadline_s = time.monotonic() + 60 * options.minutes
        for name, who in rows_of(part):
            if name not in reached:
                asked = contestants if who is None else [one for one in contestants if one in who]
                rows.append(_row(name, asked, options, deadline_s))
                reached |= _judged(rows[-1], reached, is_judged=not options.quick)
                print(_text(rows[-1]), flush=True)
                # What is done is kept, if this is ended.
                if not options.quick:
                    path = _written(rows, options, machine)
    if not options.quick:
        print(f"\nwritten   {path}")
    return int(any(row["missed"] or "flatout" in row["problems"] for row in rows))


def rows_of(part: str) -> list[tuple[str, tuple[str, ...] | None]]:
    """The rows of a part, with the contestants measured in each; None means all."""
    goal = GOALS[part][1]
    beside = [(goal.times_row[1], ("flatout",))] if goal.times_row is not None else []
    return [*beside, (part, ("plain", "flatout") if beside else None)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes per contestant")
    parser.add_argument("--part", choices=PARTS, help="measure only this goal")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="minutes per part (default: 9.5)"
    )
    parser.add_argument("--quick", action="store_true", help="use tiny sizes, and judge no goals")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _is_here(name: str, options: argparse.Namespace) -> bool:
    package = _PACKAGES.get(name)
    if package is not None and not importlib.util.find_spec(package):
        print(f"skipped: {name}: not installed", file=sys.stderr)
        return False
    # Compiling takes minutes, and says nothing of a tiny network.
    return not (options.quick and name == "max-autotune")


def _settings(goal: Goal, model: str, options: argparse.Namespace) -> dict[str, Any]:
    if not options.quick:
        return goal.settings
    small = {} if model == "mlp" else {"size": "tiny", "samples": 64, "batch_size": 8}
    return goal.settings | small if "padded" in goal.settings else small


def _row(
    name: str, contestants: list[str], options: argparse.Namespace, deadline_s: float
) -> dict[str, Any]:
    model, goal = GOALS[name]
    settings = _settings(goal, model, options)
    speeds: dict[str, list[float]] = {}
    problems: dict[str, str] = {}
    batch_size = 0
    with tempfile.TemporaryDirectory() as folder:
        fields = _searched(model, goal, settings, options, Path(folder))
        if isinstance(fields, str):
            problems["flatout"], fields = fields, {}
        for number in range(1 if options.quick else options.rounds):
            # Each round begins with another one.
            shift = number % len(contestants)
            for who in contestants[shift:] + contestants[:shift]:
                if who in problems or (who in speeds and time.monotonic() > deadline_s - 60):
                    continue
                request = {
                    "model": model, "settings": settings, "who": who, "fields": fields,
                    "device": options.device, "seconds": 0.2 if options.quick else _MEASURED_S,
                }  # fmt: skip
                answer = _asked(request, deadline_s - time.monotonic())
                if "problem" in answer:
                    # A round that came to no end takes nothing from those before.
                    if who not in speeds or not answer.get("is_late"):
                        problems[who] = answer["problem"]
                    continue
                speeds.setdefault(who, []).append(answer["samples_per_s"])
                batch_size = answer["batch_size"]
                print(f"  {name}: {who} {answer['samples_per_s']:,.0f}/s", flush=True)
    return {
        "name": name, "model": model, "settings": settings, "fields": fields, "speeds": speeds,
        "problems": problems, "batch_size": batch_size, "missed": None,
    }  # fmt: skip


def _judged(row: dict[str, Any], reached: dict[str, float], *, is_judged: bool) -> dict[str, float]:
    """Records the goals that a row missed; returns flatout's speed in it, if it ran."""
    medians = {who: statistics.median(found) for who, found in row["speeds"].items()}
    own = medians.get("flatout")
    if is_judged:
        others = {**reached, **{who: medians[who] for who in medians if who == "plain"}}
        goal = GOALS[row["name"]][1]
        row["missed"] = (
            ["did not run"] if own is None else goal.missed(own, row["batch_size"], others)
        )
    return {} if own is None else {row["name"]: own}


def _searched(
    model: str, goal: Goal, settings: dict[str, Any], options: argparse.Namespace, folder: Path
) -> dict[str, Any] | str:
    """The recipe fields that a search found, or why it found none.

    Each search has its own state folder.
    """
    from flatout.system.store.recipe_cache import fields_in

    budget_s = 5 if options.quick else round(min(_SEARCH_S, 60 * options.minutes * _SEARCH_SHARE))
    # A search on a CPU has to start, too.
    limit_s = max(60, 2 * budget_s)
    argv = [
        sys.executable, "-m", "flatout", "tune", model, "--json", "--device", options.device,
        "--numerics", goal.numerics, "--budget", str(budget_s),
    ]  # fmt: skip
    for name, value in settings.items():
        # A flag is written in small letters.
        argv += ["-s", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    env = {**os.environ, "FLATOUT_STATE": str(folder)}
    try:
        done = subprocess.run(
            argv, env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"flatout tune timed out after {limit_s} s"
    if done.returncode:
        return f"flatout tune ended with {done.returncode}"
    fields = fields_in(Path(json.loads(done.stdout)["folder"]) / "recipe.json")
    print(f"  {model}: searched for {budget_s} s: {json.dumps(fields)}", flush=True)
    return fields


def _asked(request: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """The measurement of a fresh process, in at most so many seconds."""
    argv = [sys.executable, __file__, "--child", json.dumps(request)]
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, text=True, check=False, timeout=max(1.0, limit_s)
        )
    except subprocess.TimeoutExpired:
        return {"problem": "the part ran out of time", "is_late": True}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"problem": f"its process ended with {done.returncode}"}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _measured_here(request: dict[str, Any]) -> dict[str, Any]:
    """Builds one contestant and times it."""
    from gpu_goals_loops import contestant

    from flatout.errors import FlatoutError

    try:
        timed, batch_size = contestant(request)
        update_s = timed(4)
        num_updates = max(4, round(request["seconds"] / update_s))
        # From then on compiled kernels and caches are warm.
        update_s = timed(num_updates)
    except (RuntimeError, TypeError, ValueError, ImportError, FlatoutError) as error:
        return {"problem": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return {"samples_per_s": batch_size / update_s, "batch_size": batch_size}


def _text(row: dict[str, Any]) -> str:
    parts = [f"{row['name']:20}"]
    for who, speeds in row["speeds"].items():
        low, high = min(speeds), max(speeds)
        parts.append(f"{who} {statistics.median(speeds):,.0f}/s [{low:,.0f}, {high:,.0f}]")
    parts += [f"{who}: {problem}" for who, problem in row["problems"].items()]
    if row["missed"] is not None:
        parts.append(f"missed: {'; '.join(row['missed'])}" if row["missed"] else "goal reached")
    return "  ".join(parts)


def _written(rows: list[dict[str, Any]], options: argparse.Namespace, machine: Machine) -> Path:
    measurements: list[Measurement] = [
        dated.measurement(f"{row['name']}: {who}", "samples/s", tuple(speeds), row["settings"])
        for row in rows
        for who, speeds in row["speeds"].items()
    ]
    details = {"rows": rows, "rounds": options.rounds, "at": time.strftime("%H:%M")}
    name = f"gpu-goals-{options.part}" if options.part else "gpu-goals"
    return dated.write_result(name, machine, measurements, details, options.out)


if __name__ == "__main__":
    sys.exit(main())
