"""What faults do to a training of two ranks: what is told, what it costs, and whether all is right.

    PYTHONPATH=scripts python benchmarks/faults.py [--containers [ENGINE]] [--only WORD...]

Each fault is brought about in a run of its own, of counted.py, whose weights count how often each
sample was in an update. Beside it stands a run that nothing happened to. Counted: seconds in
which nothing was trained that lasted, updates that were made again, samples that were lost or came
twice, and how far the weights are from those of the other run. With --containers those of
machines: a cluster of Ray, torchrun or Dask in three containers, whose image is built here.
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

import dated
import faults_here
from faults_runs import Row, Runs

from flatout.nouns.measurement import Measurement


def main() -> int:
    """Brings all faults about and writes the result; 1 if anything was not as it should be."""
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
        help="those of machines instead, which are containers of such a cluster",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="*", default=[""], help="words, one of which is in the name"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=dated.RESULTS, help="folder for the result")
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
            yield Row(fault=name, told="-", lost_s=time.monotonic() - began_s, problem=str(error))


def show(row: Row) -> None:
    """A fault on two lines, and what is wrong, if anything is."""
    print(f"{row.fault:<34}{row.lost_s:>6.1f}{row.num_redone:>7}{row.num_lost:>6}"
          f"{row.num_doubled:>7}  {row.exact}")  # fmt: skip
    print(f"    {row.told}", flush=True)
    if row.problem is not None:
        print(f"    WRONG: {row.problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
