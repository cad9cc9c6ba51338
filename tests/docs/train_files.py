"""Trains experiments' files as `flatout train` does, all of them in this one process.

python train_files.py [--epochs N] [--without-plots] FILE ...

What the command line and its worker do is done here too: a request is checked, a run's folder is
made, its lines are shown, the run is drawn. Only no process is started for each file: torch takes
longer to import than these files take to train. What a file prints follows its name.
"""

from __future__ import annotations

import argparse
import sys

from flatout.cli.render import show, wording
from flatout.cli.render.live import Display
from flatout.engine.training import worker
from flatout.runs import api as runs_api
from flatout.runs.start import PlannedRun, create_run_folder, specify
from flatout.schema.train_request import TrainRequest


def main() -> int:
    """Trains all files; the exit code is that of the first worker that failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--without-plots", action="store_true")
    asked = parser.parse_args()
    if asked.without_plots:
        # As Python marks a module that cannot be imported.
        sys.modules["matplotlib"] = None  # type: ignore[assignment]
    for file in asked.files:
        print(f"\n{file}", flush=True)
        code = train(TrainRequest(experiment=file, epochs=asked.epochs, tune="auto"))
        if code != 0:
            return code
    return 0


def train(request: TrainRequest) -> int:
    """Trains one file; gives its worker's exit code."""
    request.check()
    machine = runs_api.probe(sys.executable)
    folder = create_run_folder(PlannedRun(spec=specify(request), run_id=request.run_id), machine)
    name = str(folder.path)
    with Display() as display:
        display.open(runs_api.read(name), machine)
        code = worker.main([name])
        for lines in runs_api.watch(name):
            display.take(lines)
        run = runs_api.read(name)
        display.close(run, runs_api.split_of(run))
    if runs_api.can_draw():
        show.print_note(wording.plots_text(runs_api.draw_plots(run)))
    return code


if __name__ == "__main__":
    sys.exit(main())
