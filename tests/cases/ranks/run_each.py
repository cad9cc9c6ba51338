"""Runs the ranks of one job after the other, in children of this process, which has loaded torch.

run_each.py PATH ...    modules are also looked for in these folders. A line on stdin is a list of
                        ranks, as `support.forked_ranks` writes it; the answer has their exit codes.
                        Needs `os.fork`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Runs jobs until stdin ends; a child ends as its program does."""
    sys.path[:0] = sys.argv[1:]
    importlib.import_module("support.ranks_runs")
    # Children need not look through what stays as it is.
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        children = []
        for rank in json.loads(line):
            child = os.fork()
            if child == 0:
                run(rank)
                return
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def run(rank: dict[str, Any]) -> None:
    """Runs a rank's program as Python would with these variables."""
    streams = os.open(os.devnull, os.O_RDONLY), os.open(rank["log"], os.O_WRONLY)
    for number, stream in enumerate((*streams, streams[1])):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(rank["environment"])
    program = rank["command"][0]
    own = [str(Path(program).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [path for path in own if path]
    sys.argv = rank["command"]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
