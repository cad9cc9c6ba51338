"""What it brings to pin each OpenMP thread to a CPU of its own during a step.

    python benchmarks/thread_placement.py [--models mnist,resnet50] [--neighbours none,loop]

The plain loop over a built-in, in fresh processes that take turns: as the system schedules it, with
its threads pinned, and with one thread. In milliseconds per step, over blocks of a second. Linux on
a CPU only. What is seldom, two threads that share a CPU for as long as they run, takes many rounds
to show.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from neighbours import KINDS, chosen, neighbours
from never_slower import MODELS
from support import dated

RESULTS = Path(__file__).with_name("results")
WAYS = ("system", "pinned", "one")


def main() -> int:
    """Measures, prints a table, writes the result."""
    options = _options()
    if options.child:
        print(json.dumps(step_ms(options.models[0], options.child, options.seconds)))
        return 0
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    print(f"{'':11}{'next to':10}{'ms a step':>12}: median of each process")
    measurements = []
    for name in options.models:
        for kind in options.neighbours:
            blocks: dict[str, list[list[float]]] = {way: [] for way in WAYS}
            with neighbours(kind):
                for _ in range(options.rounds):
                    for way in WAYS:
                        blocks[way].append(_in_a_process(name, way, options.seconds))
            for way, processes in blocks.items():
                medians = [statistics.median(process) for process in processes]
                texts = ", ".join(f"{median:.4g}" for median in medians)
                print(f"{name:11}{kind:10}{way:>12}: {texts}", flush=True)
                conditions = {"model": name, "size": MODELS[name], "neighbours": kind, "way": way}
                measurements.append(
                    dated.measurement(
                        f"{name} beside {kind}: {way}", "ms", tuple(medians), conditions
                    )
                )
    path = dated.write_result("thread-placement", machine, measurements, {}, options.out)
    print(f"written   {path}")
    return 0


def step_ms(name: str, way: str, seconds: float) -> list[float]:
    """Milliseconds per step of each block of about a second."""
    from never_slower_experiment import experiment

    from flatout.engine.runtime.thread_placement import ThreadPlacement
    from flatout.engine.session.session import build
    from flatout.engine.tuner.baseline_loop import BaselineLoop

    built = build(dataclasses.replace(experiment(name, MODELS[name]), steps=100_000), 0, "cpu")
    placement = ThreadPlacement(built.device) if way == "pinned" else None
    loop = BaselineLoop(built, placement=placement)
    loop.run(5)
    blocks, end_s = [], time.perf_counter() + seconds
    while (begin_s := time.perf_counter()) < end_s:
        num_steps = 0
        while (took_s := time.perf_counter() - begin_s) < 1:
            loop.run(1)
            num_steps += 1
        blocks.append(1e3 * took_s / num_steps)
    return blocks


def _in_a_process(name: str, way: str, seconds: float) -> list[float]:
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if way == "one" else {})
    words = [sys.executable, __file__, "--models", name, "--child", way, "--seconds", str(seconds)]
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    blocks: list[float] = json.loads(done.stdout.splitlines()[-1])
    return blocks


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of: {', '.join(MODELS)}")
    parser.add_argument("--neighbours", default="none,loop,loops,training",
                        help=f"some of: {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each process")
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.models = options.models.split(",")
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    options.neighbours = chosen(options.neighbours)
    return options


if __name__ == "__main__":
    sys.exit(main())
