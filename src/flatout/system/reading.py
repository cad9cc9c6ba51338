"""What runs tell, beyond what is known of each: read from their folders, a damaged one survived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flatout.errors import FlatoutError, RunFailed
from flatout.nouns.lines import (
    Classified,
    EpochEnded,
    Event,
    Generated,
    Metric,
    Outlined,
    Progress,
    Tuned,
    Validated,
)  # fmt: skip
from flatout.nouns.outline import Outline
from flatout.nouns.results import Results
from flatout.nouns.run import DamagedRun, Run
from flatout.nouns.tuned_recipe import TunedRecipe
from flatout.nouns.typed import command_line, tune_command
from flatout.system import store
from flatout.system.runs import RunFolder, read_run, run_paths
from flatout.system.scan import each_line, last_line


def list_runs() -> list[Run | DamagedRun]:
    """All runs, oldest first."""
    found = [read_or_name(RunFolder(path)) for path in run_paths()]
    return [run for run in found if run is not None]


def newest_run() -> Run | None:
    """The newest of the runs that can be read, or None."""
    for path in reversed(run_paths()):
        run = read_or_name(RunFolder(path))
        if isinstance(run, Run):
            return run
    return None


def read_or_name(folder: RunFolder) -> Run | DamagedRun | None:
    """A run, or what is wrong with it; None if somebody has removed it meanwhile."""
    try:
        return read_run(folder)
    except FlatoutError as error:
        if not folder.path.exists():
            return None
        because = f"{error.problem} {error.because or ''}".strip()
        name = folder.path.name
        fix = error.fix.replace(
            "remove the run with `flatout runs rm`",
            "remove it: " + command_line(["flatout", "runs", "rm", name]),
        )
        return DamagedRun(id=name, folder=str(folder.path), because=because, fix=fix)


def each_metric(run: Run) -> Iterator[Metric]:
    """Loss, rates and validations of a run by step, one at a time: there may be very many."""
    return each_line(RunFolder(Path(run.folder)).metrics, Metric)


def milestones(run: Run) -> list[Metric]:
    """The ends of a run's epochs, and its validations."""
    words = (b'"epochended"', b'"validated"')
    found = each_line(RunFolder(Path(run.folder)).metrics, Metric, words)
    return [line for line in found if isinstance(line, EpochEnded | Validated)]


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
    """Where a run's time went, in seconds: as its end told, else as far as it has come."""
    if run.finished and run.status == "finished":
        return run.finished.split_s
    told = last_line(RunFolder(Path(run.folder)).metrics, Metric, b'"progress"')
    return told.split_s if isinstance(told, Progress) else {}


def power_of(run: Run) -> float | None:
    """Watts that a run's GPU has drawn on the average, as its last line tells; None if unknown."""
    told = last_line(RunFolder(Path(run.folder)).metrics, Metric, b'"progress"')
    return told.power_w if isinstance(told, Progress) else None


def tuned_recipe(run: Run) -> TunedRecipe:
    """The recipe that a search has found, with how it was found.

    Raises:
        RunFailed: search-not-finished.
    """
    folder = RunFolder(Path(run.folder))
    events = store.read_lines(folder.events, Event)
    tuned = next((line for line in reversed(events) if isinstance(line, Tuned)), None)
    if tuned is None or run.recipe is None:
        raise RunFailed(
            "search-not-finished",
            f"the search {run.id} was stopped before it had found a recipe.",
            fix=f"search again: {tune_command(run.header.spec)}",
        )
    return TunedRecipe(
        folder=run.folder,
        recipe=run.recipe,
        decision=tuned.decision,
        unit=tuned.unit,
        is_from_cache=tuned.is_from_cache,
    )


def outline_of(run: Run) -> Outline | None:
    """What a search has told of its experiment, for a plain loop to be written from."""
    events = store.read_lines(RunFolder(Path(run.folder)).events, Event)
    lines = [line for line in events if isinstance(line, Outlined)]
    return lines[-1].outline if lines else None


def checkpoint_steps(run: Run) -> list[int]:
    """Steps of the checkpoints that a run has kept."""
    return RunFolder(Path(run.folder)).checkpoint_steps()
