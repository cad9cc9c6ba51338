"""Is a training after `flatout tune` ever slower than one that was never tuned?

    python benchmarks/tour_beside_neighbour.py [--rounds 10] [--neighbours none,loop,training]

Runs the documented commands next to other programs. Each round starts in an empty folder: `flatout
train mlp --epochs 10 --tune off`, `flatout tune mlp --budget 10`, `flatout train mlp --epochs 10`,
and `flatout train mnist --epochs 1` with and without a search (`--tune auto`). Compared are the
training seconds that each run reports, and the seconds of the search with its budget. Each row is
stored in the work file as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from neighbours import KINDS, chosen, neighbours
from support import dated

RESULTS = Path(__file__).with_name("results")
BUDGET_S = 10.0
# Of the training's seconds; single trainings of a second differ by more than a search could tell.
LEAST = 0.98
_PAIRS = {"mlp": ("mlp tuned", "mlp"), "mnist": ("mnist auto", "mnist")}


def main() -> int:
    """Measures, prints a table, writes the result; 1 if a training was slower."""
    options = _options()
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    print(f"{'next to':10}{'round':>6}{'mlp':>9}{'tuned':>9}{'search':>9}  result of the search")
    rows: dict[str, list[dict[str, Any]]] = {}
    for kind in options.neighbours:
        for number in range(options.rounds):
            with neighbours(kind):
                row = one_round(number, has_mnist=options.mnist)
            rows.setdefault(kind, []).append(row)
            with open(options.work, "a", encoding="utf-8") as file:
                file.write(json.dumps({"neighbours": kind, **row}) + "\n")
            print(f"{kind:10}{number:6}{row['mlp']:7.2f} s{row['mlp tuned']:7.2f} s"
                  f"{row['search_s']:7.1f} s  {row['why']}", flush=True)  # fmt: skip
    goals = [goal for kind, taken in rows.items() for goal in goals_of(kind, taken)]
    for text, is_reached in goals:
        print(f"{'reached' if is_reached else 'MISSED'}   {text}")
    measurements = [
        dated.measurement(
            f"{name} beside {kind}", "s", tuple(row[name] for row in taken), {"neighbours": kind}
        )
        for kind, taken in rows.items()
        for name in taken[0]
        if isinstance(taken[0][name], float)
    ]
    path = dated.write_result(
        "tour-beside-neighbour", machine, measurements, {"rows": rows}, options.out
    )
    print(f"written   {path}")
    return 0 if all(is_reached for _, is_reached in goals) else 1


def goals_of(kind: str, rows: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """The goals in words, and whether each is reached."""
    goals = []
    for name, (tuned, untuned) in _PAIRS.items():
        if tuned not in rows[0]:
            continue
        gains = sorted(math.log(row[untuned] / row[tuned]) for row in rows)
        middle = math.exp(statistics.median(gains))
        # Where the defaults stay, both are the same training.
        is_same = all(row.get(f"{name} is_default", False) for row in rows)
        same = ", the same recipe each time" if is_same else ""
        text = f"next to {kind}: {name} after a search x{middle:.2f} of that without{same}"
        goals.append((text, is_same or middle >= LEAST))
    late = max(row["search_s"] for row in rows)
    goals.append((f"next to {kind}: search of {BUDGET_S:.0f} s took {late:.1f} s at most",
                  late <= 1.1 * BUDGET_S))  # fmt: skip
    return goals


def one_round(number: int, *, has_mnist: bool) -> dict[str, Any]:
    """All commands once, from an empty folder; the order alternates between rounds."""
    with tempfile.TemporaryDirectory() as folder:
        untuned = ("train", "mlp", "--epochs", "10", "--tune", "off")
        row: dict[str, Any] = {}
        if number % 2 == 0:
            row["mlp"] = train_s(untuned, folder)
        begin_s = time.perf_counter()
        tuned = run(("tune", "mlp", "--budget", f"{BUDGET_S:.0f}"), folder)
        row["tune with its start"] = time.perf_counter() - begin_s
        decision = tuned["decision"]
        row |= {"search_s": decision["search_s"], "why": decision["why"],
                "mlp is_default": decision["is_default"]}  # fmt: skip
        row["mlp tuned"] = train_s(("train", "mlp", "--epochs", "10"), folder)
        if number % 2 == 1:
            row["mlp"] = train_s(untuned, folder)
        if has_mnist:
            row["mnist"] = train_s(("train", "mnist", "--epochs", "1", "--tune", "off"), folder)
            row["mnist auto"] = train_s(("train", "mnist", "--epochs", "1"), folder)
        return row


def train_s(arguments: tuple[str, ...], folder: str) -> float:
    """Training seconds, as the run reports them: a recipe does not change the start of Python."""
    run_reported = run(arguments, folder)["run"]
    return float(run_reported["finished"]["train_s"])


def run(arguments: tuple[str, ...], folder: str) -> dict[str, Any]:
    """The JSON output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "flatout", *arguments, "--json"],
        env=os.environ | {"FLATOUT_STATE": folder}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"flatout {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--neighbours", default="none,loop,training",
                        help=f"some of: {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument("--mnist", action="store_true", help="also train mnist")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    parser.add_argument("--work", type=Path, default=Path("tour_beside_neighbour.jsonl"),
                        help="file with the rows measured so far")  # fmt: skip
    options = parser.parse_args()
    options.neighbours = chosen(options.neighbours)
    return options


if __name__ == "__main__":
    sys.exit(main())
