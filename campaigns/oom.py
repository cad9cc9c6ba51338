"""Makes every operation of a training run out of memory, and checks how the training ends.

    python campaigns/oom.py [--every 1] [--only flatout,accelerate,lightning] [--models plain]
    python campaigns/oom.py --allocator [--every 8]

Four small models on the CPU: a plain one, one with BatchNorm, one with dropout and draws from
three libraries, one with accumulation, clipping, a moving average and a loss that is a sum over
tokens. In each trial one operation of the third or fourth update (forward, backward, clipping,
optimizer, the checkpoint between them, reading), or one of the first validation, raises the error
of torch's allocator. flatout's run must end byte for byte like a run that the user set to use less
memory from that step on: weights, last checkpoint, losses and metrics.

The same errors in the same updates test what others offer: Accelerate's
`find_executable_batch_size`, as in its documentation, and Lightning's `BatchSizeFinder`.

`--allocator` trains on a GPU instead, with flatout only: after one operation torch's allocator has
no memory left, so the next allocation fails (oom_allocator.py).

`--costs` measures the cost of one recovery instead, in CPU time: a whole training in which one
forward pass fails, minus the same training without a failure. A failed try of larger micro-batches
costs as much.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import oom_models
from oom_allocator import AllocatorLimit
from oom_runs import Made, Trials, quiet_state
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
_COST_ROUNDS = 9
TOOLS = ("flatout", "accelerate", "lightning")


def main() -> int:
    """Runs all trials, prints the table, writes the result; 1 if flatout failed one."""
    options = _options()
    if options.allocator and not torch.cuda.is_available():
        print("skipped: --allocator needs a GPU that torch can use", file=sys.stderr)
        return 0
    began_s = time.perf_counter()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rows: list[dict[str, Any]] = []
    if options.costs:
        with tempfile.TemporaryDirectory() as folder, quiet_state(Path(folder)):
            for name in options.models:
                print(costs_text(name, Trials(Path(folder) / "runs")), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as folder, quiet_state(Path(folder)):
        for tool in _installed(options.only):
            for name in options.models:
                rows.append(_row(tool, name, options, Path(folder)))
                print(_line(rows[-1]), flush=True)
    return _report(rows, time.perf_counter() - began_s, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, help="take each n-th operation (8 on a GPU, else all)")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=TOOLS, help="comma-separated"
    )
    parser.add_argument(
        "--models", type=lambda text: text.split(","), default=oom_models.NAMES, help="likewise"
    )
    parser.add_argument("--costs", action="store_true", help="measure the cost of one recovery")
    parser.add_argument("--allocator", action="store_true", help="limit the allocator of a GPU")
    parser.add_argument("--device", default="cpu", help="cuda is the same as --allocator")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    options.allocator |= options.device.startswith("cuda")
    options.every = options.every or (8 if options.allocator else 1)
    if options.allocator:
        options.only = ["flatout"]
    return options


def _installed(only: list[str]) -> list[str]:
    """The requested tools that are installed; prints which are not."""
    missing = [name for name in only if name != "flatout" and not importlib.util.find_spec(name)]
    for name in missing:
        print(f"skipped: {name}: not installed (pip install flatout[bench])", file=sys.stderr)
    return [name for name in only if name not in missing]


def _row(tool: str, name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The results of all trials of a tool with a model."""
    if tool == "flatout":
        made = list(flatout_trials(_trials(folder, options), name, options.every))
    else:
        # Imported only if requested: its dependencies may be missing.
        from oom_peers import peer_trials

        made = list(peer_trials(tool, name, options.every, folder))
    problems = collections.Counter(one.problem for one in made if one.problem)
    return {
        "tool": tool,
        "model": name,
        "injections": len(made),
        "went_on": sum(one.went_on for one in made),
        "in_place": sum(one.adaptation is None or one.adaptation.is_in_place for one in made),
        "identical": sum(one.problem is None for one in made),
        "problems": dict(problems.most_common(3)),
        "failed": [one.operation for one in made if one.problem][:10],
    }


def _trials(folder: Path, options: argparse.Namespace) -> Trials:
    if not options.allocator:
        return Trials(folder / "runs")
    # cuBLAS reads it when CUDA is first used; without it products do not repeat bit for bit.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return Trials(folder / "runs", AllocatorLimit, {"device": "cuda", "deterministic": True})


def flatout_trials(trials: Trials, name: str, every: int) -> Iterator[Made]:
    """One training for each operation that fails."""
    for part in ("updates", "validation"):
        for at in range(1, trials.num_operations(name, part) + 1, every):
            made = trials.made(name, part, at)
            if made is not None:
                yield made


def costs_text(name: str, trials: Trials) -> str:
    """The cost of one recovery: the median of differences, the lowest and the highest."""
    differences = []
    for number in range(_COST_ROUNDS):
        times = {at: trials.cpu_s(name, at) for at in ((None, 1) if number % 2 else (1, None))}
        differences.append(1e3 * (times[1] - times[None]))
    low, middle, high = min(differences), statistics.median(differences), max(differences)
    return f"{name:14} a recovery costs {middle:.1f} ms [{low:.1f}, {high:.1f}] of CPU time"


def _line(row: dict[str, Any]) -> str:
    said = "; ".join(row["problems"])[:90]
    in_place = f"{row['in_place']:4d}" if row["tool"] == "flatout" else "   -"
    return (
        f"{row['tool']:12}{row['model']:14}{row['injections']:10d}{row['went_on']:9d}"
        f"{in_place:>10}{row['identical']:11d}   {said}"
    )


def _report(rows: list[dict[str, Any]], seconds: float, options: argparse.Namespace) -> int:
    machine = dated.read_machine()
    print(f"\nmachine   {dated.machine_text(machine)}")
    versions = dated.versions("torch", "accelerate", "lightning")
    print("versions  " + " · ".join(f"{name} {version}" for name, version in versions.items()))
    print(
        f"\n{'':12}{'model':14}{'injections':>10}{'finished':>9}{'in place':>10}{'identical':>11}"
    )
    measurements = []
    for row in rows:
        print(_line(row))
        measurements += [
            Measurement(name=f"{row['tool']}, {row['model']}: {what}", value=row[what], unit="1")
            for what in ("injections", "went_on", "identical")
        ]
    measurements.append(Measurement(name="duration", value=seconds, unit="s"))
    own = [row for row in rows if row["tool"] == "flatout"]
    is_lost = any(row["identical"] < row["injections"] for row in own)
    details = {"rows": rows, "every": options.every}
    path = dated.write_result(
        "oom-allocator" if options.allocator else "oom", machine, measurements, details, options.out
    )
    print(f"written   {path}")
    return 1 if is_lost else 0


if __name__ == "__main__":
    sys.exit(main())
