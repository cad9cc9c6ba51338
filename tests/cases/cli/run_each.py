"""Runs command lines one after the other, in children of this process, which has loaded flatout.

run_each.py SRC    a line on stdin is an order, as `support.forked_commands` writes it; the answer
                   is the exit code. Needs `os.fork`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from typing import Any

# What commands import, in turns; whatever these import has no work to do at its import.
NAMES = (
    "flatout.__main__", "flatout.bench.api", "flatout.cli.commands.cluster",
    "flatout.cli.commands.explain", "flatout.cli.commands.runs", "flatout.cli.commands.setup",
    "flatout.cli.commands.show", "flatout.cli.commands.sweep", "flatout.cli.commands.train",
    "flatout.cli.render.live", "flatout.cli.render.show", "flatout.cli.render.show_cluster",
    "flatout.cli.render.show_setup", "flatout.cluster.api", "flatout.doctor.api",
    "flatout.runs.api", "flatout.cli.flows.create_env",
)  # fmt: skip


def main() -> None:
    """Carries out orders until stdin ends; a child ends as its command does."""
    sys.path.insert(0, sys.argv[1])
    for name in NAMES:
        importlib.import_module(name)
    # Sweeps need it, and it takes longer than flatout.
    with contextlib.suppress(ImportError):
        importlib.import_module("optuna")
    gc.collect()
    # Children need not look through what stays as it is.
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            run(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(order: dict[str, Any]) -> None:
    """Runs `flatout` with these arguments, variables, folder and streams."""
    streams = [
        os.open(os.devnull, os.O_RDONLY),
        os.open(order["stdout"], os.O_WRONLY | os.O_APPEND),
        os.open(order["stderr"], os.O_WRONLY | os.O_APPEND),
    ]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for name in order["missing"]:
        # As Python marks a module that cannot be imported.
        sys.modules[name] = None  # type: ignore[assignment]
    sys.argv = ["-c", *order["arguments"]]
    importlib.import_module("flatout.__main__").main()


if __name__ == "__main__":
    main()
