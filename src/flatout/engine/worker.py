"""The process that trains: `python -m flatout.engine.worker RUN_DIR`.

Started by the command line; speaks through the run's folder alone (docs/architecture.md).
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

import msgspec

from flatout.engine.course import Task
from flatout.engine.datasets import downloads_told_to
from flatout.engine.failures import bad_news
from flatout.engine.loading import load_experiment
from flatout.engine.training import train_in
from flatout.engine.watch import StopRequest, signals_as_requests, watch_pipe
from flatout.errors import FlatoutError
from flatout.nouns.change import Change
from flatout.nouns.run import RunHeader
from flatout.system import store
from flatout.system.runs import RunFolder


def main(argv: list[str] | None = None) -> int:
    """Trains in a run's folder; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flatout.engine.worker")
    parser.add_argument("run_dir", type=Path, help="folder of a run, with its run.json")
    parser.add_argument("--attached", action="store_true", help="stop when stdin ends")
    parser.add_argument("--change", default="{}", help="JSON: recipe fields and epochs")
    arguments = parser.parse_args(argv)
    request = StopRequest()
    if arguments.attached:
        watch_pipe(request)
    try:
        change = msgspec.json.decode(arguments.change, type=Change)
        folder = RunFolder(arguments.run_dir.absolute())
        spec = store.read_json(folder.header, RunHeader).spec
        with signals_as_requests(request), downloads_told_to(folder):
            task = Task(folder, spec, change, request, is_alone=True)
            train_in(task, lambda: load_experiment(spec))
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told and logged
        # The folder's Failed event tells the person; this goes to worker.log for us.
        traceback.print_exc()
        news = bad_news(error)
        return news.exit_code if isinstance(news, FlatoutError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
