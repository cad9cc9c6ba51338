"""Facts of runs beyond their headers: read from their folders, a damaged one survived."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

from flatout.errors import FlatoutError, RunFailed
from flatout.schema.class_report import Results
from flatout.schema.code_outline import CodeOutline
from flatout.schema.run import DamagedRun, Run
from flatout.schema.run_lines import (
    Classified,
    EpochEnded,
    Event,
    Generated,
    Metric,
    Outlined,
    Progress,
    Tuned,
    Validated,
)
from flatout.schema.suggested_command import command_line, tune_command
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.system import atomic_files
from flatout.system.store.jsonl_scan import each_line, last_line
from flatout.system.store.run_folder import RunFolder, read_run, run_paths


def list_runs() -> list[Run | DamagedRun]:
    """All runs, oldest first."""
    runs = [read_or_name(RunFolder(path)) for path in run_paths()]
    return [run for run in runs if run is not None]


def newest_run() -> Run | None:
    """The newest of the runs that can be read, or None."""
    for path in reversed(run_paths()):
        run = read_or_name(RunFolder(path))
        if isinstance(run, Run):
            return run
    return None


def read_or_name(
    folder: RunFolder, validations: Iterable[Validated] | None = None
) -> Run | DamagedRun | None:
    """A run, or what is wrong with it; None if someone has removed it in the meantime.

    validations: as of `read_run`.
    """
    try:
        return read_run(folder, validations)
    except FlatoutError as error:
        if _is_gone(folder.path):
            return None
        because = f"{error.problem} {error.because or ''}".strip()
        name = folder.path.name
        fix = error.fix.replace(
            atomic_files.REMOVE_RUN,
            "remove it: " + command_line(["flatout", "runs", "rm", name]),
        )
        return DamagedRun(id=name, folder=str(folder.path), because=because, fix=fix)


def _is_gone(path: Path) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # The disk does not respond.
    return False


def each_metric(run: Run) -> Iterator[Metric]:
    """Loss, rates and validations of a run by step, one at a time: there may be very many."""
    return each_line(RunFolder(Path(run.folder)).metrics, Metric)


def milestones(run: Run) -> list[Metric]:
    """The ends of a run's epochs, and its validations."""
    words = (b'"epochended"', b'"validated"')
    lines = each_line(RunFolder(Path(run.folder)).metrics, Metric, words)
    return [line for line in lines if isinstance(line, EpochEnded | Validated)]


def results_of(run: Run) -> Results:
    """A run's confusions, as they were when the kept weights were taken, and its last samples."""
    judged = run.best_validation or (run.validations[-1] if run.validations else None)
    confusions: dict[str, Classified] = {}
    samples = None
    words = (b'"classified"', b'"generated"')
    for line in each_line(RunFolder(Path(run.folder)).metrics, Metric, words):
        if isinstance(line, Classified) and judged and line.step == judged.step:
            confusions[line.name] = line
        elif isinstance(line, Generated):
            samples = line
    return Results(confusions=tuple(confusions.values()), samples=samples)


def split_of(run: Run) -> dict[str, float]:
    """The division of a run's time, in seconds: as recorded at its end, else so far."""
    if run.finished and run.status == "finished":
        return run.finished.split_s
    line = last_line(RunFolder(Path(run.folder)).metrics, Metric, b'"progress"')
    return line.split_s if isinstance(line, Progress) else {}


def rate_of(run: Run) -> float | None:
    """Samples per second while it trained: the median of its lines; None if there are none."""
    lines = each_line(RunFolder(Path(run.folder)).metrics, Metric, (b'"progress"',))
    rates = [line.samples_per_s for line in lines if isinstance(line, Progress)]
    known = [rate for rate in rates if rate is not None]
    return median(known) if known else None


def power_of(run: Run) -> float | None:
    """Watts that a run's GPU has drawn on average, from its last line; None if unknown."""
    line = last_line(RunFolder(Path(run.folder)).metrics, Metric, b'"progress"')
    return line.power_w if isinstance(line, Progress) else None


def tuned_recipe(run: Run) -> TunedRecipe:
    """The recipe that a search has found, with how it was found.

    Raises:
        RunFailed: search-not-finished.
    """
    folder = RunFolder(Path(run.folder))
    events = atomic_files.read_lines(folder.events, Event)
    tuned = next((line for line in reversed(events) if isinstance(line, Tuned)), None)
    if tuned is None or run.recipe is None:
        again = tune_command(run.header.spec, run.change_for_another(sys.executable))
        raise RunFailed(
            "search-not-finished",
            f"the search {run.id} was stopped before it found a recipe.",
            fix=f"search again: {again}",
        )
    return TunedRecipe(
        folder=run.folder,
        recipe=run.recipe,
        decision=tuned.decision,
        unit=tuned.unit,
        is_from_cache=tuned.is_from_cache,
    )


def outline_of(run: Run) -> CodeOutline | None:
    """The record of a search about its experiment, for a plain loop to be written from."""
    events = atomic_files.read_lines(RunFolder(Path(run.folder)).events, Event)
    lines = [line for line in events if isinstance(line, Outlined)]
    return lines[-1].outline if lines else None


def checkpoint_steps(run: Run) -> list[int]:
    """Steps of the checkpoints that a run has kept."""
    return RunFolder(Path(run.folder)).checkpoint_steps()
