"""Runs the ranks of one job after the other, in children of this process, which has loaded torch.

run_each.py PATH [MODULE ...]    modules are also looked for in that folder; these are loaded, too.
                                 A line on stdin is a list of ranks, as `support.forked_ranks`
                                 writes it; the answer has their exit codes. A rank's program is a
                                 file, or a module after `-m`. Needs `os.fork`.
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
    sys.path.insert(0, sys.argv[1])
    # Without torch's compiler, which a worker on a CPU loads only when it is needed.
    for name in ("support.ranks_runs", *sys.argv[2:]):
        importlib.import_module(name)
    gc.collect()
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
    os.chdir(rank["folder"])
    os.environ.clear()
    os.environ.update(rank["environment"])
    program, *arguments = rank["command"]
    own = [rank["folder"] if program == "-m" else str(Path(program).parent)]
    own += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in own if path]
    if numpy := sys.modules.get("numpy"):
        # As in a process of its own; Python's own generator does so by itself.
        numpy.random.seed()
    if program == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rank["command"]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
