"""How often `flatout bench compare` is right: A against A, and against a planted difference of 5 %.

    python benchmarks/compare_trials.py [--rounds 100] [--blocks 5]

Real samples: in each round, fresh processes multiply matrices on one thread, in turns: two that do
the same (A and A), and one (B) that makes 105 products where it says 100. Each times its blocks by
the wall clock and by the CPU time of its thread, which leaves out what other programs take.
A comparison takes the processes of consecutive rounds, as many as a bench file has; 100 of them
start at different rounds, so neighboring ones share processes. Simulated samples: several
distributions, processes that differ, and outliers. A comparison is one headline row through all of
`flatout.bench.compare`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import dated

from flatout.bench.compare import compare
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.bench_comparison import LoadedBench
from flatout.schema.machine import Machine
from flatout.system.load import LoadWatch

RESULTS = Path(__file__).with_name("results")
CHILD = Path(__file__).with_name("compare_trials_child.py")
PLANTED = 1.05
GOALS = {"same": 95, "planted": 90}
NUM_TRIALS = 100
# Processes and blocks in each; `limits` measures 10 x 5.
COUNTS = ((3, 5), (5, 4), (10, 5), (20, 5))

Samples = list[float]
# Makes the samples of a file of so many processes and blocks.
Draw = Callable[[int, int], Samples]


def main() -> int:
    """Measures, compares, prints a table, writes the result."""
    options = _options()
    machine = dated.read_machine()
    watch = LoadWatch()
    rounds = [one for number in range(options.rounds) if (one := measured_round(number, options))]
    load = watch.load()
    rows = [*real_trials(rounds), *simulated_trials()]
    for row in rows:
        print(text_of(row))
    found = [
        dated.Measurement(name=row["name"], value=row[kind], unit="of 100", conditions=row)
        for row in rows
        for kind in ("same", "planted")
    ]
    details = {
        "planted": PLANTED, "goals": GOALS, "num_rounds": len(rounds), "rounds": rounds,
        "other_cpus": load.other_cpus if load else None,
    }  # fmt: skip
    print(dated.write_result("compare-trials", machine, found, details, RESULTS))
    return 0 if all(row["same"] >= GOALS["same"] for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="of three fresh processes each")
    parser.add_argument("--blocks", type=int, default=5, help="samples of each process")
    return parser.parse_args()


def measured_round(number: int, options: argparse.Namespace) -> dict[str, dict[str, Samples]]:
    """One process of each kind; their order rotates."""
    kinds = [("a", 1.0), ("same", 1.0), ("planted", PLANTED)]
    shift = number % len(kinds)
    found = {}
    for name, factor in kinds[shift:] + kinds[:shift]:
        command = [sys.executable, str(CHILD), str(factor), str(options.blocks)]
        variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=120, check=True
        )
        found[name] = json.loads(done.stdout)
    if number % 10 == 9:
        print(f"round {number + 1}/{options.rounds}", file=sys.stderr, flush=True)
    return found


def real_trials(rounds: Sequence[dict[str, dict[str, Samples]]]) -> Iterator[dict[str, object]]:
    """Comparisons of processes of consecutive rounds."""
    num_measured = len(rounds[0]["a"]["wall"]) if rounds else 0
    for clock in ("wall", "cpu"):
        for num_processes, num_blocks in COUNTS:
            if num_processes > len(rounds) or num_blocks > num_measured:
                continue
            counts = {"same": 0, "planted": 0}
            for trial in range(NUM_TRIALS):
                start = trial * (len(rounds) - num_processes) // (NUM_TRIALS - 1)
                window = rounds[start : start + num_processes]
                files = {
                    name: [one for r in window for one in r[name][clock][:num_blocks]]
                    for name in ("a", *counts)
                }
                for name in counts:
                    counts[name] += is_right(files["a"], files[name], num_processes, name)
            noise = spread([one for r in rounds for one in r["a"][clock]])
            yield row_of(f"matrix product, {clock} time", num_processes, num_blocks, counts, noise)


def simulated_trials() -> Iterator[dict[str, object]]:
    """Comparisons of numbers from known distributions."""
    for name, process_noise, noise in (
        ("normal, 2 %", lambda g: 0.0, lambda g: g.gauss(0, 0.02)),
        ("processes differ by 1 %, blocks by 2 %", lambda g: g.gauss(0, 0.01),
         lambda g: g.gauss(0, 0.02)),
        ("10 % outliers, up to 2x", lambda g: 0.0,
         lambda g: g.gauss(0, 0.02) + (abs(g.gauss(0, 0.5)) if g.random() < 0.1 else 0)),
        ("Student's t, 2 degrees", lambda g: 0.0,
         lambda g: 0.015 * g.gauss(0, 1) / math.sqrt(g.expovariate(1))),
        ("Cauchy", lambda g: 0.0, lambda g: 0.01 * math.tan(math.pi * (g.random() - 0.5))),
        ("one in five processes is 30 % slower", lambda g: 0.3 if g.random() < 0.2 else 0.0,
         lambda g: g.gauss(0, 0.01)),
    ):  # fmt: skip
        generator = random.Random(name)

        def draw(num_processes: int, num_blocks: int, factor: float) -> Samples:
            samples = []
            for _ in range(num_processes):
                own = process_noise(generator)  # noqa: B023 - called before the next one
                samples += [
                    factor * math.exp(max(-50.0, min(50.0, own + noise(generator))))  # noqa: B023
                    for _ in range(num_blocks)
                ]
            return samples

        for counts_of in COUNTS:
            counts = {"same": 0, "planted": 0}
            for _ in range(NUM_TRIALS):
                first = draw(*counts_of, 1.0)
                for kind, factor in (("same", 1.0), ("planted", PLANTED)):
                    second = draw(*counts_of, factor)
                    counts[kind] += is_right(first, second, counts_of[0], kind)
            yield row_of(f"simulated: {name}", *counts_of, counts, None)


def is_right(first: Samples, second: Samples, num_processes: int, kind: str) -> bool:
    """Whether the whole comparison says "cannot tell" or "slower", as it must."""
    files = [_file(name, one, num_processes) for name, one in (("A", first), ("B", second))]
    value = compare(files).rows[0].values[1]
    assert value is not None and value.change is not None
    return value.change.verdict == ("slower" if kind == "planted" else "cannot tell")


def _file(name: str, samples: Samples, num_processes: int) -> LoadedBench:
    row = BenchRow(
        id="limits/matmul/fp32", label="product", unit="s", samples=tuple(samples),
        is_higher_better=False,
    )  # fmt: skip
    state = DeviceState(at="")
    file = BenchFile(
        kind="limits", flatout="", machine=Machine(), began=state, ended=state, rows=(row,),
        settings={"num_processes": str(num_processes), "device": "cpu"},
    )  # fmt: skip
    return LoadedBench(name=name, path=name, file=file)


def spread(samples: Samples) -> float:
    """Half of the middle 68 %, as a share of the median: the noise, whatever its outliers."""
    ordered = sorted(samples)
    low, middle, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.16, 0.5, 0.84))
    return (high - low) / 2 / middle


def row_of(
    name: str, num_processes: int, num_blocks: int, counts: dict[str, int], noise: float | None
) -> dict[str, object]:
    """One line of the result."""
    return {"name": name, "processes": num_processes, "blocks": num_blocks, "noise": noise,
            **counts}  # fmt: skip


def text_of(row: dict[str, object]) -> str:
    """A line for people."""
    noise = "" if row["noise"] is None else f"  noise {100 * float(str(row['noise'])):.1f} %"
    counts = f"{row['processes']} x {row['blocks']}"
    return (
        f"{row['name']:<50} {counts:>7}   A/A cannot tell {row['same']:>3}/100"
        f"   5 % found {row['planted']:>3}/100{noise}"
    )


if __name__ == "__main__":
    sys.exit(main())
