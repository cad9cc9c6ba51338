"""What ranks take of memory to build and resume a sharded model, compared with whole ones.

    python benchmarks/sharded_memory.py [--rounds 3] [--ranks 2] [--blocks 32]

A model of 32 MiB per block and AdamW, `flatout train --on local:2` on CPUs with gloo. `sharded` is
`sharding=full`; `built whole` is the same for a model that reads a weight while it is built, so
that no rank can build it without memory; `whole` is `sharding=none`. One run makes a step and is
saved; its checkpoint is resumed in shards and whole. Compared is what each rank's memory has grown
by, at its peak, from the call of `model` to the first call of `loss`.

Below 12 blocks, rank 0 checks with whole models whether shares of a batch compute the same.

The goal, for anonymous memory: to build the model, ranks other than the first need their share of
the weights and two blocks (one is received, one is cut). For a resume, each rank needs its share of
weights and moments, or what building takes, and two blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from flatout.system.process_env import loopback_variables

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sharded_memory_model import IS_ENDED, PEAKS, WIDTH
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
MODEL = Path(__file__).with_name("sharded_memory_model.py")
MIB = 2**20
# Name: its sharding, and whether the model reads a weight while it is built.
CONTESTANTS = {
    "sharded": ("full", False),
    "built whole": ("full", True),
    "whole": ("none", False),
}
# What is measured, of a new run and of its resume; a checkpoint does not depend on sharding.
CASES = [
    *(("built", name) for name in CONTESTANTS), ("resumed", "sharded"), ("resumed", "whole"),
]  # fmt: skip
BLOCK_BYTES = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)
# AdamW's moments and the weights.
STATES = 3
# Python's own objects, the optimizer's, gloo's buffers.
ROOM_BYTES = 24 * MIB
Taken = dict[str, int]


def main() -> int:
    """Measures in turns, prints a table, writes the result; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        saved = Path(place)
        peaks_of([*new_run("sharded", options), "--name", "saved"], saved, options.ranks)
        rounds = [
            {case: measure(case, saved, options) for case in CASES} for _ in range(options.rounds)
        ]
    return report(rounds, options)


def measure(case: tuple[str, str], saved: Path, options: argparse.Namespace) -> list[Taken]:
    """What each rank takes until its first step."""
    phase, name = case
    with tempfile.TemporaryDirectory() as place:
        words = new_run(name, options)
        if phase == "resumed":
            shutil.copytree(saved / "state", Path(place, "state"), copy_function=_link_or_copy)
            use = ["--use", f"sharding={CONTESTANTS[name][0]}"]
            words = ["--resume", "saved", "--steps", "2", *use, "--on", f"local:{options.ranks}"]
        taken = peaks_of(words, Path(place), options.ranks, is_ended=True)
    print(*case, *taken, file=sys.stderr, flush=True)
    return taken


def _link_or_copy(source: str, target: str) -> None:
    """A link to tensors, which are never written again; a copy of anything else."""
    (os.link if source.endswith(".safetensors") else shutil.copyfile)(source, target)


def new_run(name: str, options: argparse.Namespace) -> list[str]:
    """Words of `flatout train` for a new run."""
    sharding, is_read = CONTESTANTS[name]
    setting = ["-s", f"num_blocks={options.blocks}", "-s", f"is_read={str(is_read).lower()}"]
    use = ["--use", f"sharding={sharding}", "--use", "num_threads=1", "--device", "cpu"]
    return [str(MODEL), *setting, *use, "--on", f"local:{options.ranks}"]


def peaks_of(
    words: list[str], place: Path, num_ranks: int, *, is_ended: bool = False
) -> list[Taken]:
    """What each rank has taken in `flatout train`, which is ended there, or makes its step."""
    own = {"FLATOUT_STATE": str(place / "state"), "OMP_NUM_THREADS": "1"}
    own |= {PEAKS: str(place), IS_ENDED: str(int(is_ended))}
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "train", *words],
        env={**os.environ, **loopback_variables(), **own},
        capture_output=True,
        text=True,
        check=False,
    )
    files = [place / f"rank{rank}.json" for rank in range(num_ranks)]
    if not all(file.exists() for file in files) or bool(done.returncode) != is_ended:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    return [json.loads(file.read_text()) for file in files]


def goals(options: argparse.Namespace) -> dict[tuple[str, int], float]:
    """Bytes by phase and rank that a sharded model may take."""
    weights = options.blocks * BLOCK_BYTES
    room = 2 * BLOCK_BYTES + ROOM_BYTES
    share = weights / options.ranks
    found: dict[tuple[str, int], float] = {}
    for rank in range(options.ranks):
        # The first one builds the whole model, and cuts it.
        to_build = share if rank else weights
        found["built", rank] = to_build + room
        found["resumed", rank] = max(to_build, STATES * share) + room
    return found


def report(rounds: list[dict[tuple[str, str], list[Taken]]], options: argparse.Namespace) -> int:
    """Prints and writes the results; 1 if a sharded model takes more than the goal."""
    machine = dated.read_machine()
    weights = options.blocks * BLOCK_BYTES
    conditions = {"ranks": options.ranks, "blocks": options.blocks, "weights_bytes": weights}
    print(f"machine   {dated.machine_text(machine)}")
    print(
        f"model     {weights / MIB:.0f} MiB in {options.blocks} blocks; {STATES} of it with AdamW"
    )
    print(
        f"{'':14}{'':10}{'rank':>5}{'resident':>12}{'anonymous':>12}{'goal':>9}   MiB, peak growth"
    )
    measurements: list[Measurement] = []
    limits = goals(options)
    is_missed = False
    for phase, name in CASES:
        for rank in range(options.ranks):
            medians = []
            for kind in ("resident", "anonymous"):
                samples = tuple(float(one[phase, name][rank][kind]) for one in rounds)
                medians.append(statistics.median(samples) / MIB)
                title = f"{name}, {phase}, rank {rank}: {kind}"
                measurements.append(dated.measurement(title, "B", samples, conditions))
            goal = ""
            if name == "sharded":
                # The last samples are those of anonymous memory.
                is_missed |= max(samples) > limits[phase, rank]
                goal = f"{limits[phase, rank] / MIB:.0f}"
            print(f"{name:14}{phase:10}{rank:5}{medians[0]:12.0f}{medians[1]:12.0f}{goal:>9}")
    details = {"goals": {f"{phase}, rank {rank}": limits[phase, rank] for phase, rank in limits}}
    path = dated.write_result("sharded-memory", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 1 if is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
