"""The process that starts ranks, waits for them, and says how they ended by its exit code.

It does not import torch where the launcher does without: the ranks take their second for that.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from flatout import __version__
from flatout.engine.launch.job import Job, Lifeline, Nodes, tell
from flatout.errors import UsageError
from flatout.nouns.placement import parse_placement
from flatout.system.exit_code import end


def main(argv: list[str] | None = None) -> int:
    """Launches the ranks of a run; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flatout.engine.launch")
    parser.add_argument("run_dir", type=Path, help="folder of a run, with its run.json")
    parser.add_argument("--on", required=True, type=parse_placement, metavar="LAUNCHER:N")
    parser.add_argument("--attached", action="store_true", help="stop when stdin ends")
    parser.add_argument("--change", default="{}", help="JSON, as the worker takes it")
    parser.add_argument("--flatout", metavar="VERSION", help="of whoever has made the run")
    parser.add_argument("--node", type=int, default=0, help="which of --nodes this is, from 0")
    parser.add_argument("--nodes", type=int, default=1, help="machines with a launcher each")
    parser.add_argument("--meet", metavar="HOST:PORT", help="where that of the first waits")
    given = parser.parse_args(argv)
    # A name of ours, checked: nothing else is imported by it.
    launcher = importlib.import_module(f"flatout.engine.launch.{given.on.launcher}")
    with Lifeline(is_attached=given.attached) as lifeline:
        job = Job(
            folder=given.run_dir.absolute(),
            num_ranks=given.on.num_ranks,
            change=given.change,
            lifeline=lifeline,
            nodes=_nodes(given.node, given.nodes, given.meet),
        )
        if given.flatout not in (None, __version__):
            return tell(job, _other_version(given.flatout))
        return int(launcher.launch(job))


def _other_version(wanted: str) -> UsageError:
    return UsageError(
        "cluster-versions-differ",
        f"the cluster has flatout {__version__}; where the run was made it is {wanted}.",
        because="a run is made there and trained here, which one version alone does alike",
        fix=f"install flatout {wanted} on the cluster's nodes; flatout cluster up does it for "
        "containers",
    )


def _nodes(node: int, count: int, place: str | None) -> Nodes | None:
    if place is None:
        return None
    host, _, port = place.rpartition(":")
    return Nodes(node=node, count=count, host=host, port=int(port))


if __name__ == "__main__":
    end(main())
