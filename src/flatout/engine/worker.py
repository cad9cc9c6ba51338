"""The process that trains: `python -m flatout.engine.worker RUN_DIR`.

Started by the command line; speaks through the run's folder alone (docs/architecture.md).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from pathlib import Path

import msgspec

from flatout.engine.quick_import import COMPILER, import_quickly

if __name__ == "__main__":
    # Before all that imports it.
    import_quickly("torch")

import torch

from flatout.engine.changed_file import read_text, with_changed_file
from flatout.engine.connection import Connection
from flatout.engine.course import Task
from flatout.engine.datasets import downloads_told_to
from flatout.engine.deferred_compiler import defer_compiler
from flatout.engine.experiment import Experiment
from flatout.engine.failures import bad_news
from flatout.engine.group import Group
from flatout.engine.journal import tell_refusal
from flatout.engine.loading import load_experiment, spec_here
from flatout.engine.place import may_be_first, place_here
from flatout.engine.ranks import ALONE, Ranks
from flatout.engine.training import train_in
from flatout.engine.watch import StoppedEarly, StopRequest, signals_as_requests, watch_pipe
from flatout.errors import FlatoutError
from flatout.nouns.change import Change
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.run import RunHeader
from flatout.system import store
from flatout.system.exit_code import end
from flatout.system.runs import RunFolder


def main(argv: list[str] | None = None) -> int:
    """Trains in a run's folder; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flatout.engine.worker")
    parser.add_argument("run_dir", type=Path, help="folder of a run, with its run.json")
    parser.add_argument("--attached", action="store_true", help="stop when stdin ends")
    parser.add_argument("--change", default="{}", help="JSON: recipe fields and epochs")
    parser.add_argument("--ranked", action="store_true", help="one of several; RANK says which")
    arguments = parser.parse_args(argv)
    request = StopRequest()
    if arguments.attached:
        watch_pipe(request)
    folder = RunFolder(arguments.run_dir.absolute())
    try:
        header = store.read_json(folder.header, RunHeader)
        ranks: Ranks = ALONE
        if arguments.ranked:
            ranks = _group_here(folder, f"{header.id} {header.created_at}")
            tell_apart(folder, ranks.rank)
        change = msgspec.json.decode(arguments.change, type=Change)
        spec = with_changed_file(spec_here(folder, header.spec), change.file)
        downloads = downloads_told_to(folder) if ranks.is_first else contextlib.nullcontext()
        with signals_as_requests(request), downloads:
            text = read_text(spec, change)
            task = Task(folder, spec, change, request, is_alone=True, ranks=ranks, text=text)
            train_in(task, lambda: _loaded(spec))
    except StoppedEarly:
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told and logged
        # The folder's Failed event tells the person; this goes to worker.log for us.
        with contextlib.suppress(OSError):  # Its disk may be what is full.
            traceback.print_exc()
        news = bad_news(error)
        return news.exit_code if isinstance(news, FlatoutError) else 3
    return 0


def _loaded(spec: ExperimentSpec) -> Experiment:
    """The experiment; and what its first update would import, or a stand-in for it."""
    is_on_gpu = torch.cuda.is_available()
    if not is_on_gpu:
        defer_compiler()
    experiment = load_experiment(spec)
    if is_on_gpu:
        # An import in the midst of a capture has not been tried.
        import_quickly(COMPILER)
    return experiment


def _group_here(folder: RunFolder, run: str) -> Group:
    """The ranks of a run, of which this process is one; not yet joined."""
    try:
        return Group(Connection(place_here(), run))
    except FlatoutError as error:
        if may_be_first():
            tell_refusal(folder, error)
        raise


def tell_apart(folder: RunFolder, rank: int) -> None:
    """Lets a rank other than the first print into a log of its own, whoever has started it."""
    if rank:
        sys.stdout.flush()
        sys.stderr.flush()
        with store.mapped_os_errors(folder.path), open(folder.rank_log(rank), "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)


if __name__ == "__main__":
    end(main())
