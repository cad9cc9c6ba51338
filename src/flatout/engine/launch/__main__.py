"""The process that starts ranks, waits for them, and says how they ended by its exit code.

It does not import torch where the launcher does without: the ranks take their second for that.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from flatout import __version__
from flatout.engine.launch.job import Lifeline, NodeRendezvous, RankJob, log_refusal
from flatout.errors import UsageError
from flatout.schema.placement import parse_placement
from flatout.system.exit_code import end


def main(argv: list[str] | None = None) -> int:
    """Launches the ranks of a run; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flatout.engine.launch")
    parser.add_argument("run_dir", type=Path, help="folder of a run, with its run.json")
    parser.add_argument("--on", required=True, type=parse_placement, metavar="LAUNCHER:N")
    parser.add_argument("--attached", action="store_true", help="stop when stdin closes")
    parser.add_argument(
        "--change", default="{}", help="change of the run as JSON, passed to the worker"
    )
    parser.add_argument(
        "--flatout", metavar="VERSION", help="version of flatout that created the run"
    )
    parser.add_argument("--node", type=int, default=0, help="number of this node, from 0")
    parser.add_argument(
        "--nodes", type=int, default=1, help="number of machines, each with a launcher"
    )
    parser.add_argument(
        "--meet", metavar="HOST:PORT", help="address where the first node's launcher waits"
    )
    given = parser.parse_args(argv)
    # A name of ours, checked: nothing else is imported by it.
    launcher = importlib.import_module(f"flatout.engine.launch.{given.on.launcher}")
    with Lifeline(is_attached=given.attached) as lifeline:
        job = RankJob(
            folder=given.run_dir.absolute(),
            num_ranks=given.on.num_ranks,
            change=given.change,
            lifeline=lifeline,
            nodes=_nodes(given.node, given.nodes, given.meet),
        )
        if given.flatout not in (None, __version__):
            return log_refusal(job, _other_version(given.flatout))
        return int(launcher.launch(job))


def _other_version(required: str) -> UsageError:
    return UsageError(
        "cluster-versions-differ",
        f"the cluster has flatout {__version__}; the run was created with {required}.",
        because="creating and training a run need the same version",
        fix=f"install flatout {required} on the cluster's nodes; flatout cluster up does this for "
        "containers",
    )


def _nodes(node: int, count: int, address: str | None) -> NodeRendezvous | None:
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    return NodeRendezvous(node=node, count=count, host=host, port=int(port))


if __name__ == "__main__":
    end(main())
