"""Injects faults into trainings with two ranks; checks messages, lost time, samples and weights.

    python campaigns/faults.py [--containers [ENGINE]] [--only WORD...]

Each fault hits a run of its own, of counted.py, whose weights count how often each sample was in an
update, and is compared with an undisturbed run. Counted: seconds of lost training time, repeated
updates, lost and duplicate samples, and the distance from the other run's weights. With
--containers the faults are those of machines: a cluster of Ray, torchrun or Dask in three
containers, whose image is built here.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import faults_here
from faults_runs import Row, Runs
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")


def main() -> int:
    """Injects all faults and writes the result; 1 if anything went wrong."""
    options = _options()
    rows: list[Row] = []
    machine = dated.read_machine()
    name = {None: "faults", "ray": "faults-containers"}.get(
        options.containers, f"faults-containers-{options.containers}"
    )
    # Never in the place of all.
    name += "" if options.only == [""] else "-some"
    print(f"machine   {dated.machine_text(machine)}\n")
    print(f"{'fault':<34}{'s':>6}{'again':>7}{'lost':>6}{'twice':>7}  weights")
    for row in _rows(options):
        rows.append(row)
        show(row)
        # What is done is kept, if this is ended.
        measurements = [Measurement(name=one.fault, value=one.lost_s, unit="s") for one in rows]
        details = {"rows": [dataclasses.asdict(one) for one in rows]}
        path = dated.write_result(name, machine, measurements, details, options.out)
    if rows:
        print(f"\nwritten   {path}")
    return int(not rows or any(row.problem for row in rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--containers", nargs="?", const="ray", choices=("ray", "torchrun", "dask"),
        help="inject faults of machines, which are containers of such a cluster",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="*", default=[""], help="only faults whose name contains one of these words"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    return parser.parse_args()


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        if not options.containers:
            here = Runs(
                state=folder / "here", on="local:2", logs=folder / "logs", epochs=options.epochs
            )
            yield from _each(faults_here.faults(), here, options.only)
            return
        import faults_cluster
        import faults_in_containers
        import faults_in_nodes

        faults = {
            "ray": faults_in_containers.faults,
            "torchrun": faults_in_nodes.faults,
            "dask": faults_in_nodes.faults_on_dask,
        }[options.containers]()
        with faults_cluster.cluster(folder, options.containers, options.epochs) as there:
            yield from _each(faults, there, options.only)


def _each(faults: dict[str, Callable[[Any], Row]], runs: Runs, only: list[str]) -> Iterator[Row]:
    for name, bring_about in faults.items():
        if not any(word in name for word in only):
            continue
        began_s = time.monotonic()
        try:
            runs.make_ready()
            yield bring_about(runs)
        except Exception as error:  # noqa: BLE001 - the others are brought about all the same
            yield Row(
                fault=name, reported="-", lost_s=time.monotonic() - began_s, problem=str(error)
            )


def show(row: Row) -> None:
    """Prints a fault on two lines, and what went wrong."""
    print(f"{row.fault:<34}{row.lost_s:>6.1f}{row.num_redone:>7}{row.num_lost:>6}"
          f"{row.num_doubled:>7}  {row.exact}")  # fmt: skip
    print(f"    {row.reported}", flush=True)
    if row.problem is not None:
        print(f"    WRONG: {row.problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
