"""The process that trains: `python -m flatout.engine.training.worker RUN_DIR`.

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

from flatout.engine.runtime.fast_import import COMPILER, import_quickly

if __name__ == "__main__":
    # Before all that imports it.
    import_quickly("torch")

from flatout.engine.data.builtin_datasets import report_downloads_to
from flatout.engine.experiment import Experiment
from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.protocol import ALONE, RankGroup
from flatout.engine.ranks.rank_env import may_be_first, rank_env_here
from flatout.engine.runlog.event_log import append_refusal
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.lazy_compiler import defer_compiler_on_cpu
from flatout.engine.runtime.stop_signals import (
    StoppedEarly,
    StopRequest,
    signals_as_requests,
    watch_pipe,
)
from flatout.engine.session.load_experiment import load_experiment, spec_here
from flatout.engine.training.api import train_in
from flatout.engine.training.changed_experiment import read_text, with_changed_file
from flatout.engine.training.trainer import TrainTask
from flatout.errors import FlatoutError
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.system import atomic_files
from flatout.system.exit_code import end
from flatout.system.store.run_folder import RunFolder


def main(argv: list[str] | None = None) -> int:
    """Trains in a run's folder; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flatout.engine.training.worker")
    parser.add_argument("run_dir", type=Path, help="folder of a run, with its run.json")
    parser.add_argument("--attached", action="store_true", help="stop when stdin closes")
    parser.add_argument("--change", default="{}", help="recipe fields and epochs, as JSON")
    parser.add_argument(
        "--ranked", action="store_true", help="run as one of several ranks; RANK says which"
    )
    arguments = parser.parse_args(argv)
    request = StopRequest()
    if arguments.attached:
        watch_pipe(request)
    folder = RunFolder(arguments.run_dir.absolute())
    try:
        header = atomic_files.read_json(folder.header, RunHeader)
        ranks: RankGroup = ALONE
        if arguments.ranked:
            ranks = _group_here(folder, f"{header.id} {header.created_at}")
            redirect_output(folder, ranks.rank)
        change = msgspec.json.decode(arguments.change, type=Change)
        spec = with_changed_file(spec_here(folder, header.spec), change.file)
        downloads = report_downloads_to(folder) if ranks.is_first else contextlib.nullcontext()
        with signals_as_requests(request), downloads:
            text = read_text(spec, change)
            task = TrainTask(folder, spec, change, request, is_alone=True, ranks=ranks, text=text)
            train_in(task, lambda: _loaded(spec))
    except StoppedEarly:
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - every exception is reported and logged
        # The folder's Failed event informs the user; this goes to worker.log for us.
        with contextlib.suppress(OSError):  # Its disk may be what is full.
            traceback.print_exc()
        known_error = to_flatout_error(error)
        return known_error.exit_code if isinstance(known_error, FlatoutError) else 3
    return 0


def _loaded(spec: ExperimentSpec) -> Experiment:
    """The experiment; and what its first update would import, or a stand-in for it."""
    is_deferred = defer_compiler_on_cpu()
    experiment = load_experiment(spec)
    if not is_deferred:
        import_quickly(COMPILER)
    return experiment


def _group_here(folder: RunFolder, run: str) -> MultiRank:
    """The ranks of a run, including this process; not yet joined."""
    try:
        return MultiRank(Connection(rank_env_here(), run))
    except FlatoutError as error:
        if may_be_first():
            append_refusal(folder, error)
        raise


def redirect_output(folder: RunFolder, rank: int) -> None:
    """Lets a rank other than the first print into a log of its own, however it was started."""
    if rank:
        sys.stdout.flush()
        sys.stderr.flush()
        with atomic_files.mapped_os_errors(folder.path), open(folder.rank_log(rank), "ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)


if __name__ == "__main__":
    end(main())
